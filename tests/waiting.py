"""Waiting for what other processes do."""

import time
from pathlib import Path


def wait_until(found, within_s=10.0):
    """The first true answer of ``found``, or the last one once the time is over."""
    deadline = time.monotonic() + within_s
    while not (answer := found()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


def runs(pid):
    """Not gone, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
