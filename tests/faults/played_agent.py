"""Plays the torchrun agent and two ranks in a fifth of a second: forks them, lets them beat, leaves what real ones leave.

TEMPLATES ARGUMENTS_OF_THE_AGENT...; TEMPLATES holds the ranks' records. Every process ends with the one that started it.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from harness.engine.process import be_parent_of_children, die_with_parent, dump_stacks_on_signal
from harness.records.store import write_atomically

STEP_S = 0.05


def rank(number: int, run_dir: Path, templates: Path) -> None:
    """Beat for every step of the recorded one, then leave its record."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    record = json.loads((templates / f"rank_{number:03d}.json").read_text())
    ranks, log = run_dir / "ranks", run_dir / "logs" / f"rank_{number:03d}.log"
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    dump_stacks_on_signal()
    with (ranks / f"rank_{number:03d}.progress.jsonl").open("a", buffering=1) as beats:
        for step in record["steps"]:
            time.sleep(STEP_S)
            beat = {"time_s": time.time(), "phase": "step", **{key: step[key] for key in ("step", "seconds", "loss")}}
            beats.write(json.dumps(beat) + "\n")
            behave(number, step["step"], run_dir, templates)
        beats.write(json.dumps({"time_s": time.time(), "phase": "finish"}) + "\n")
    temporary = ranks / f"rank_{number:03d}.json.tmp"
    temporary.write_text(json.dumps(record | {"pid": os.getpid()}))
    temporary.replace(ranks / f"rank_{number:03d}.json")
    behave(number, "finish", run_dir, templates)


def behaviour(templates: Path) -> dict:
    """The content of `behaviour.json`."""
    path = templates / "behaviour.json"
    return json.loads(path.read_text()) if path.exists() else {}


def behave(number: int, step: int | str, run_dir: Path, templates: Path) -> None:
    """After step 1, what `behaviour.json` says: ``fill`` a folder, ``touch`` a file or ``wait`` for one; ``linger``: a
    rank that left its record does not end. ``where``: only in runs whose folder has that in its path.
    """
    asked = behaviour(templates) if step in (1, "finish") else {}
    if asked.get("where", "") not in str(run_dir):
        return
    while step == "finish" and asked.get("linger") == number:
        blocked_for_ever()
    if step == "finish":
        return
    if asked.get("touch") and number == 0:
        Path(asked["touch"]).touch()
    if asked.get("fill") and number == 0:
        with (run_dir / asked["fill"] / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1 << 16))
    while asked.get("wait") and not Path(asked["wait"]).exists():
        time.sleep(STEP_S)


def blocked_for_ever() -> None:
    """Named in the stack that a hang leaves."""
    time.sleep(600)


def forked(number: int, run_dir: Path, templates: Path) -> int:
    """The process of a rank."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            rank(number, run_dir, templates)
            code = 0
        finally:
            if code:
                sys.excepthook(*sys.exc_info())
            os._exit(code)
    return pid


def main() -> None:
    """Start the ranks, wait for them, write the agent's record."""
    templates, arguments = Path(sys.argv[1]), sys.argv[2:]
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path)
    parser.add_argument("--run_dir", type=Path)
    asked, _ = parser.parse_known_args(arguments)
    die_with_parent()
    be_parent_of_children()
    numbers = range(len(list(templates.glob("rank_*.json"))))
    crew = {forked(number, asked.run_dir, templates): number for number in numbers}

    def stop(number: int, _frame: object) -> None:
        for pid in crew:
            os.kill(pid, signal.SIGKILL)
        leave(asked.result, 128 + number, status="signalled", signal=number)

    signal.signal(signal.SIGTERM, stop)
    left, failures = dict(crew), []
    while left:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        number = left.pop(pid)
        if code:
            name = signal.Signals(-code).name if code < 0 else None
            failures.append({"rank": number, "local_rank": number, "pid": pid, "exit_code": code, "signal": name})
            for other in left:
                os.kill(other, signal.SIGTERM)
    first = failures[0]["rank"] if failures else None
    leave(asked.result, int(bool(failures)), status="failed" if failures else "ok", failures=failures, first_rank=first)


def leave(result: Path, code: int, **record: object) -> None:
    """The agent's record, whole or not at all, and the end."""
    try:
        write_atomically(result, json.dumps(record))
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
