"""NVML as a process: ``python -m harness.engine.nvml list``, and ``sample --out FILE`` for the length of a run."""

import argparse
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pynvml

from harness.engine.nvml_device import Gpu, optional, reason_of
from harness.engine.nvml_sampler import Sampler, document
from harness.engine.process import die_with_parent
from harness.records.run import NodeSample
from harness.records.store import write_atomically


def main(argv: Sequence[str]) -> int:
    """0, also without a GPU or driver: that is an answer, and it is in the output."""
    parser = argparse.ArgumentParser(prog="harness.engine.nvml")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the GPUs of this machine as JSON")
    sample = commands.add_parser("sample", help="sample memory and clocks until SIGTERM or the parent's death")
    sample.add_argument("--out", type=Path, required=True)
    sample.add_argument("--interval_ms", type=int, default=50)
    sample.add_argument("--run_pid", type=int, default=os.getppid(), help="what ranks descend from (the parent)")
    arguments = parser.parse_args(argv)
    if arguments.command == "list":
        print(json.dumps(listing()))  # noqa: T201 (the answer)
    else:
        run_sampler(arguments.out, arguments.interval_ms / 1000, arguments.run_pid)
    return 0


def listing() -> dict:
    """``{"driver": ..., "cuda": ..., "gpus": [{index, name, uuid, total_bytes}]}``, or ``{"error": ...}``."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": reason_of(error)}
    try:
        gpus = [_listed(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "cuda": _cuda_of_driver(), "gpus": gpus}
    except pynvml.NVMLError as error:
        return {"error": reason_of(error)}
    finally:
        pynvml.nvmlShutdown()


def _cuda_of_driver() -> str | None:
    """The newest CUDA that the driver supports, which NVML codes as 1000 x major + 10 x minor."""
    code = optional(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return None if code is None else f"{code // 1000}.{code % 1000 // 10}"


def _listed(index: int) -> dict:
    try:
        gpu = Gpu(index)
        _, total, _ = gpu.memory()
    except pynvml.NVMLError as error:
        return {"index": index, "error": reason_of(error)}
    return {"index": index, "name": gpu.name, "uuid": gpu.uuid, "total_bytes": total}


def run_sampler(out: Path, interval_s: float, run_pid: int) -> None:
    """Sample until SIGTERM, SIGINT or the parent's death; without NVML the file says why."""
    parent = os.getppid()
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stopped.append(received))
    die_with_parent(signal.SIGTERM)
    try:
        pynvml.nvmlInit()
        sampler = Sampler(out, interval_s, run_pid, lambda: bool(stopped) or os.getppid() != parent)
    except pynvml.NVMLError as error:
        write_atomically(out, document(NodeSample(hostname=socket.gethostname(), error=reason_of(error))))
        return
    sampler.run()
    pynvml.nvmlShutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
