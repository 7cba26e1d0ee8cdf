"""Memory of a log against a golden: the same counters at the same moment, per rank, never the first line found."""

from collections.abc import Iterable
from dataclasses import replace

from harness.analysis.foreign.values import COUNTERS, METRIC, ForeignThresholds, Judged
from harness.analysis.gate import Finding, Verdict, compare_values
from harness.records.foreign.bridge_memory import OF_THE_FIRST_REPORT, bridge_report
from harness.records.foreign.golden_values import ForeignGolden
from harness.records.foreign.values import ForeignLog, RankMemory, WorstRank


def judge_memory(log: ForeignLog, golden: ForeignGolden, allowed: ForeignThresholds) -> Judged:
    """One finding per counter that either side has."""
    findings, notes = [], []
    for name, counter in COUNTERS.items():
        finding, told = (
            _against_one_value(name, counter, log, golden, allowed)
            if golden.format == "bridge"
            else _against_series(name, counter, log, golden, allowed)
        )
        findings += [finding] if finding else []
        notes += told
    return Judged(tuple(findings), tuple(dict.fromkeys(notes)))


def worst_ranks(log: ForeignLog) -> dict[str, WorstRank]:
    """The largest report of each counter over all ranks and iterations, by the metric's name."""
    found = {name: log.worst(counter) for name, counter in COUNTERS.items()}
    return {name: worst for name, worst in found.items() if worst is not None}


def _against_one_value(
    name: str, counter: str, log: ForeignLog, golden: ForeignGolden, allowed: ForeignThresholds
) -> tuple[Finding | None, list[str]]:
    report = bridge_report(log, counter, of_whole_run=golden.of_whole_run)
    stored = golden.memory.get(counter)
    current = _bytes(report, counter) if report else None
    if stored is None:
        return _only_current(name, current), []
    if current is None:
        return _missing(name, stored, allowed, _absent(log)), []
    finding = compare_values(METRIC[name], current, stored, allowed.memory)
    worst = log.worst(counter)
    later = []
    if report and worst and worst.value > current * (1 + allowed.memory) and counter in OF_THE_FIRST_REPORT:
        later = [
            f"{METRIC[name].title}: the golden is of a log's first report; after iteration {worst.iteration} rank "
            f"{worst.rank} has {worst.value / 1e9:.5g} GB ({worst.where})"
        ]
    return finding, later


def _against_series(
    name: str, counter: str, log: ForeignLog, golden: ForeignGolden, allowed: ForeignThresholds
) -> tuple[Finding | None, list[str]]:
    """Megatron-LM's goldens are of the last rank; the last that reports is on the same pipeline stage."""
    series, told = golden.memory_by_iteration.get(counter), _telling(log.memory, counter)
    if not series:
        report = max(told, key=lambda one: _bytes(one, counter), default=None)
        return _only_current(name, _bytes(report, counter) if report else None), []
    both = [one for one in told if one.iteration in series]
    if not both:
        stored = series[max(series)]
        listed = ", ".join(str(number) for number in sorted({one.iteration for one in told})[:5])
        why = (
            f"the log reports memory after iterations {listed}; the golden has no value of these (--log-memory-interval 1)"
            if told
            else _absent(log)
        )
        return _missing(name, stored, allowed, why), []
    report = max(both, key=lambda one: (one.rank, one.iteration))
    finding = compare_values(METRIC[name], _bytes(report, counter), series[report.iteration], allowed.memory)
    return finding, [
        f"Memory: rank {report.rank} after iteration {report.iteration} ({report.where}); the golden is of the last rank"
    ]


def _telling(reports: Iterable[RankMemory], counter: str) -> list[RankMemory]:
    return [one for one in reports if getattr(one, counter) is not None]


def _bytes(report: RankMemory, counter: str) -> int:
    value: int = getattr(report, counter)
    return value


def _only_current(name: str, current: int | None) -> Finding | None:
    if current is None:
        return None
    return Finding(name, current, None, None, None, Verdict.NOT_GATED, "the golden has no such value")


def _missing(name: str, stored: int, allowed: ForeignThresholds, why: str) -> Finding:
    finding = compare_values(METRIC[name], None, stored, allowed.memory)
    return replace(finding, verdict=Verdict.INCONCLUSIVE, reason=why)


def _absent(log: ForeignLog) -> str:
    return (
        "no rank reports it in the log" if log.memory else "no line '[Rank N] (after N iterations) memory' in the log"
    )
