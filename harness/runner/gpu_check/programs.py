"""Programs of scripts/gpu-check.d: processes that do to a GPU what no run of the product does."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.launch.environment import Host
from harness.records.redact import redact

LAST_CHARACTERS = 2000
SAME_NUMBERS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as ranks have it


@dataclass(frozen=True)
class Program:
    """How one ended: ``folder`` holds what it wrote, ``said`` the end of its output, without secrets.

    ``timed_out``: it was killed at its time limit.
    """

    exit_code: int
    seconds: float
    folder: Path
    said: str
    timed_out: bool = False


def run_program(
    host: Host, script: Path, arguments: Sequence[str], env: Mapping[str, str], timeout_s: float
) -> Program:
    """``script FOLDER ...`` until it ends; at the time limit it and its children are killed."""
    began, timed_out = time.monotonic(), False
    process = subprocess.Popen(
        (host.python, str(script), *arguments),
        env={**host.shell, **SAME_NUMBERS, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        _kill(process.pid)
        said, _ = process.communicate()
    except BaseException:
        _kill(process.pid)
        process.wait()
        raise
    text = redact(said.decode(errors="replace").strip())[-LAST_CHARACTERS:]
    return Program(process.returncode, round(time.monotonic() - began, 1), Path(arguments[0]), text, timed_out)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
