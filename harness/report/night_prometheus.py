"""A night in the text format of Prometheus: for the textfile collector of node-exporter."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import get_args

from harness.analysis.metrics import METRICS
from harness.analysis.night.values import CaseVerdict, NightVerdict
from harness.analysis.speed import cell_figure
from harness.records.history import CaseOutcome
from harness.report.console import visible

OUTCOMES: tuple[CaseOutcome, ...] = get_args(CaseOutcome)

# Figures of runs that did not end well are figures so far.
_UNFINISHED = ("failed", "oom")


@dataclass(frozen=True)
class _Family:
    """One metric name with its samples; the textfile collector takes no timestamps, so that times are values."""

    name: str
    about: str
    samples: tuple[tuple[Mapping[str, str], float], ...]


def night_prometheus(verdict: NightVerdict) -> str:
    """The file. Gauges only; a figure that is absent or not finite has no sample, and a name without samples no header."""
    return "".join(_text(family) for family in (*_night(verdict), *_cases(verdict)) if family.samples)


def _night(verdict: NightVerdict) -> Iterable[_Family]:
    plan = verdict.plan
    labels = {"suite": plan.suite, **({"shard": plan.shard} if plan.shard else {})}
    counts = Counter(case.outcome for case in verdict.cases)

    def one(name: str, about: str, value: float) -> _Family:
        return _Family(f"mbr_perf_night_{name}", about, ((labels, value),))

    yield one("start_time_seconds", "When the night started, in seconds since 1970", _epoch_s(plan.started_at))
    yield one("end_time_seconds", "When the night was judged, in seconds since 1970", _epoch_s(verdict.finished_at))
    yield one("exit_code", "What mbr-perf nightly exited with", int(verdict.exit_code))
    yield one("missing_runs", "Runs that were still to be done", verdict.num_due)
    if verdict.aa:
        yield one(
            "aa_holds",
            "1 where the night's own A/A holds, 0 where it does not or could not tell",
            float(verdict.aa.holds),
        )
        changes = (({**labels, "metric": found.metric}, found.change) for found in verdict.aa.findings)
        about = "Relative difference of the two labels of the A/A"
        yield _Family("mbr_perf_night_aa_change_ratio", about, _finite(changes))
    each = tuple(({**labels, "outcome": outcome}, float(counts[outcome])) for outcome in OUTCOMES)
    yield _Family("mbr_perf_night_cases", "Cases of the night by outcome", each)


def _cases(verdict: NightVerdict) -> Iterable[_Family]:
    labelled = [({"suite": verdict.plan.suite, "case": case.planned.name}, case) for case in verdict.cases]
    yield _Family(
        "mbr_perf_case_outcome",
        "1 for the outcome of the case, 0 for the others",
        tuple(({**to, "outcome": o}, float(case.outcome == o)) for to, case in labelled for o in OUTCOMES),
    )
    yield _Family(
        "mbr_perf_case_expected",
        "1 where the suite expects this bad outcome",
        tuple((to, float(case.is_expected)) for to, case in labelled),
    )
    yield _Family(
        "mbr_perf_case_runs",
        "Committed runs behind the figures",
        tuple((to, float(len(case.counted))) for to, case in labelled),
    )
    for metric in METRICS:
        found = (
            (to, cell_figure(metric, case.metrics, case.speed))
            for to, case in labelled
            if case.metrics and case.outcome not in _UNFINISHED
        )
        name = f"mbr_perf_case_{_NAMES.get(metric.name, metric.name)}"
        yield _Family(name, f"{metric.title} of the case's runs", _finite(found))
    yield _Family(
        "mbr_perf_case_change_ratio",
        "Relative change of a metric against its golden value",
        _finite(change for to, case in labelled for change in _changes(to, case)),
    )


# Names end in the base unit.
_NAMES = {
    "step_time_s": "step_time_seconds", "mfu": "mfu_ratio", "hfu": "hfu_ratio",
    "tokens_per_s_per_gpu": "tokens_per_second_per_gpu", "counted_flops_per_step": "counted_flop_per_step",
    "tflops_per_gpu": "teraflop_per_second_per_gpu",
}  # fmt: skip


def _changes(labels: Mapping[str, str], case: CaseVerdict) -> Iterable[tuple[Mapping[str, str], float | None]]:
    return (({**labels, "metric": finding.metric}, finding.change) for finding in case.findings)


def _finite(samples: Iterable[tuple[Mapping[str, str], float | None]]) -> tuple[tuple[Mapping[str, str], float], ...]:
    return tuple((labels, value) for labels, value in samples if value is not None and math.isfinite(value))


def _text(family: _Family) -> str:
    lines = [f"# HELP {family.name} {family.about}.", f"# TYPE {family.name} gauge"]
    for labels, value in family.samples:
        told = ",".join(f'{name}="{_escape(text)}"' for name, text in labels.items())
        lines.append(f"{family.name}{{{told}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _epoch_s(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
