"""Plays the torchrun agent: starts the ranks, waits for them, writes the same record; needs no torch."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("-m")
parser.add_argument("--result")
parser.add_argument("--nproc-per-node", type=int)
parser.add_argument("--master-port")
known, rest = parser.parse_known_args()
worker = rest[next(i for i, arg in enumerate(rest) if not arg.startswith("--")) :]
result = pathlib.Path(known.result)


def leave(code, **record):
    result.write_text(json.dumps(record))
    sys.exit(code)


if "die" in worker:
    os.kill(os.getpid(), signal.SIGKILL)
if "silent-success" in worker:
    sys.exit(0)
command = [sys.executable, *worker]
crew = [
    subprocess.Popen(command, env={**os.environ, "RANK": str(rank)}, start_new_session=True)
    for rank in range(known.nproc_per_node)
]


def stop(number, _frame):
    for rank in crew:
        rank.terminate()
    for rank in crew:
        rank.wait()
    leave(128 + number, status="signalled", signal=number)


signal.signal(signal.SIGTERM, stop)
while None in [rank.poll() for rank in crew]:
    time.sleep(0.05)
    if any(rank.returncode for rank in crew):
        for rank in crew:
            rank.terminate()
failures = [
    {
        "rank": number,
        "local_rank": number,
        "pid": rank.pid,
        "exit_code": rank.returncode,
        "signal": signal.Signals(-rank.returncode).name if rank.returncode < 0 else None,
    }
    for number, rank in enumerate(crew)
    if rank.returncode
]
leave(int(bool(failures)), status="failed" if failures else "ok", failures=failures, first_rank=0 if failures else None)
