"""Golden files of Megatron-Bridge: what they take of a log, and their text."""

import json
from collections.abc import Mapping

from harness.foreign.log import ForeignLog, RankMemory

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


def bridge_text(document: Mapping[str, object]) -> str:
    """Write JSON; ValueError for NaN, which JSON does not have."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
