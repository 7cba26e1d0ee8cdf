"""Processes that keep runs in history: `history_writer.py write|killed RESULTS PREFIX COUNT`.

``write`` keeps COUNT runs; ``killed`` starts COUNT writers, each killed a little later after its first run than the one
before, so that the kills fall on every part of a write.
"""

import multiprocessing
import sys
import time
from itertools import count
from pathlib import Path

from harness.history.record import HistoryFigure, HistoryRecord
from harness.history.store import write_history

_LATER_S = 37e-6
_CASE = "h100/llama3_70b.sft.fp8_cs.32gpu.none"


def write(results, run_id):
    """Keep one run."""
    record = HistoryRecord(
        run_id=run_id,
        case=_CASE,
        fingerprint="0123456789abcdef",
        started_at="2026-01-02T03:04:05+00:00",
        duration_s=60.0,
        status="ok",
        metrics={"tflops_per_gpu": HistoryFigure(value=700.0)},
        formula_version="model-flops-1",
        hostname="node0",
    )
    return write_history(results, record)


def write_for_ever(results, prefix):
    """Until somebody ends it."""
    for number in count():
        write(results, f"{prefix}.{number}")


def kill_writers(results, prefix, num_writers):
    """One after the other, as SIGKILL does: without a last word."""
    fork = multiprocessing.get_context("fork")
    for number in range(num_writers):
        first = results / "history" / _CASE / f"{prefix}-{number}.0.json"
        writer = fork.Process(target=write_for_ever, args=(results, f"{prefix}-{number}"))
        writer.start()
        while not first.exists():
            time.sleep(0.0001)
        time.sleep(number * _LATER_S)
        writer.kill()
        writer.join()


if __name__ == "__main__":
    how, folder, name, number_of = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    if how == "killed":
        kill_writers(folder, name, number_of)
    else:
        for each in range(number_of):
            write(folder, f"{name}.{each}")
