"""Writes golden files of Megatron-Bridge from a log or a golden."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadRequestError, os_errors_reported
from harness.foreign.golden import LOSS, MEMORY, THROUGHPUT, TIME_MS, read_foreign_golden
from harness.foreign.log import ForeignLog, Iteration, RankMemory
from harness.records.store import write_atomically
from harness.units import GB

OF_THE_FIRST_REPORT = ("allocated_bytes", "max_allocated_bytes")


def bridge_report(log: ForeignLog, counter: str, *, of_whole_run: bool = False) -> RankMemory | None:
    """Return the worst rank's report of ``counter``; None if no rank reports it.

    For allocated bytes, Bridge stores the log's first report, from whichever rank prints first. This function takes all
    ranks of that iteration. For reserved bytes, Bridge stores the largest report; goldens ``of_whole_run`` do so for
    both.
    """
    reports = [report for report in log.memory if getattr(report, counter) is not None]
    if counter in OF_THE_FIRST_REPORT and not of_whole_run:
        first = min((report.iteration for report in reports), default=None)
        reports = [report for report in reports if report.iteration == first]
    return max(reports, key=lambda seen: (getattr(seen, counter), -seen.iteration, -seen.rank), default=None)


Document = dict[str, object]


def actuals_of(log: ForeignLog) -> Document:
    """Return the log's values under Bridge's keys, without values that are missing or NaN in the log."""
    document: Document = {str(item.number - 1): _values_of(item) for item in log.iterations}
    for key, counter in MEMORY.items():
        report = bridge_report(log, counter)
        if report is not None:
            document[key] = float(f"{getattr(report, counter) / GB:.5g}")
    return document


def write_actuals(path: Path, log: ForeignLog) -> None:
    """Write the log's values. BadRequestError if the file exists and holds something else, or cannot be written."""
    if path.exists():
        remedy = "with --actuals, name a new file, or a file with golden values of Megatron-Bridge"
        try:
            found = read_foreign_golden(path)
        except BadRequestError as error:
            raise BadRequestError(error.message, remedy=remedy) from error
        if found.format != "bridge":
            raise BadRequestError(f"{path}: golden values of {found.format}", remedy=remedy)
    with os_errors_reported(f"{path}: cannot be written", "name a file in a folder that exists"):
        write_atomically(path, bridge_text(actuals_of(log)))


def bridge_text(document: Mapping[str, object]) -> str:
    """Write JSON; ValueError for NaN, which JSON does not have."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _values_of(iteration: Iteration) -> Document:
    milliseconds = None if iteration.step_time_s is None else round(iteration.step_time_s * 1000, 6)
    values = {LOSS: iteration.loss, TIME_MS: milliseconds, THROUGHPUT: iteration.tflops_per_gpu}
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
