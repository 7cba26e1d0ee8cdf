"""Prints the result of a run, with a table of its ranks."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from harness.errors import ExitCode
from harness.judging import readings, statistics
from harness.judging.coverage import throughput_text
from harness.judging.gate import Comparison, Finding, Outcome, Verdict
from harness.judging.metrics import METRICS, SUMMARY_METRICS, Metrics
from harness.judging.oom.classify import oom_of_run
from harness.judging.readings import is_victim, window_of
from harness.records.golden import GoldenRecord
from harness.records.rank import RankRecord
from harness.records.run import RunRecord
from harness.run.predicting.prediction import prediction_line, whole_run
from harness.showing import figures
from harness.showing.figures import ABSENT, cap_figure, clock_figure
from harness.showing.printing import Console, plain_table, print_lines, show
from harness.showing.request_text import request_table
from harness.units import format_bytes, format_seconds

MAX_ROWS = 16
CLOCKS = ("SM clock", "Power cap")


def rank_table(record: RunRecord) -> tuple[Table, str]:
    """The table, and a sentence on what it leaves out: above ``MAX_ROWS`` ranks the fullest of each stage and the failed."""
    device_used = readings.device_used(record.nodes)
    with_clocks = any(rank.clocks for rank in record.ranks)
    figures = ("Rank", "Stage", "Allocated", "Reserved", "Device used", "Step", *(CLOCKS if with_clocks else ()))
    table = plain_table(*figures, "State", right=figures)
    shown = _shown(record.ranks)
    for rank in shown:
        table.add_row(
            str(rank.rank),
            str(rank.coordinates.pp),
            *(_bytes(read(rank)) for read in (readings.allocated, readings.reserved, device_used)),
            _step(rank, record),
            *(_clocks(rank) if with_clocks else ()),
            _state(rank, record),
        )
    if len(shown) == len(record.ranks):
        return table, ""
    return table, f"{len(record.ranks)} ranks: the fullest of each stage and those that failed; all are in record.json."


def _shown(ranks: tuple[RankRecord, ...]) -> list[RankRecord]:
    if len(ranks) <= MAX_ROWS:
        return list(ranks)
    fullest: dict[int, RankRecord] = {}
    for rank in ranks:
        best = fullest.get(rank.coordinates.pp)
        if best is None or (readings.allocated(rank) or 0) > (readings.allocated(best) or 0):
            fullest[rank.coordinates.pp] = rank
    failed = {rank.rank for rank in ranks if rank.failure}
    chosen = {rank.rank for rank in fullest.values()} | failed
    return [rank for rank in ranks if rank.rank in chosen][: max(MAX_ROWS, len(fullest))]


def _bytes(value: int | None) -> str:
    return ABSENT if value is None else format_bytes(value)


def _step(rank: RankRecord, record: RunRecord) -> str:
    """The rank's own median over the window; below the job's, which waits for the slowest rank each step."""
    seconds = window_of([rank], 1, *record.spec.measure.window).seconds
    return format_seconds(statistics.median(seconds)) if seconds else ABSENT


def _clocks(rank: RankRecord) -> tuple[str, str]:
    """The median SM clock of the rank's GPU and its time under the power cap."""
    own = rank.clocks
    return clock_figure(own.sm_clock_mhz if own else None), cap_figure(own.power_cap_share if own else None)


def _state(rank: RankRecord, record: RunRecord) -> Text:
    if rank.failure is None:
        return Text("ok") if rank.finished else Text("unfinished", style="yellow")
    full = [other.rank for other in record.ranks if other.failure and other.failure.kind == "oom"]
    if full and is_victim(rank.failure):
        return Text(f"ended because rank {full[0]} was out of memory", style="yellow")
    return Text(f"{rank.failure.kind} {rank.failure.when}".rstrip(), style="red")


_STYLES = {
    "pass": "green",
    "improvement": "cyan",
    "regression": "bold red",
    "oom": "bold red",
    "failed": "bold red",
    "inconclusive": "yellow",
    "not_gated": "dim",
}


def print_run(
    console: Console,
    record: RunRecord,
    metrics: Metrics,
    comparison: Comparison,
    verdict: tuple[Outcome, ExitCode],
    run_dir: Path,
) -> None:
    """A run from the request to the verdict; the last line alone says how it went."""
    show(console, request_table(record))
    table, omitted = rank_table(record)
    console.print()
    show(console, table)
    print_lines(console, [omitted] if omitted else [])
    console.print()
    show(console, _metrics_table(metrics, is_whole=record.status == "ok"))
    print_lines(console, _absent(metrics))
    print_lines(console, [line] if (line := figures.clock_line(metrics.clocks)) else [])
    told = prediction_line(record.prediction, record.no_prediction, whole_run(record, metrics))
    print_lines(console, [told] if told else [])
    print_lines(console, [f"Suspect: {why}" for why in record.suspect], style="yellow")
    own = throughput_text(record, metrics)
    print_lines(console, [f"Note: {note}" for note in (*record.notes, *([own] if own else []))])
    print_lines(console, [f"Failure: {record.failure}"] if record.failure else [], style="red")
    print_lines(console, _out_of_memory(record))
    console.print()
    print_comparison(console, comparison)
    console.print()
    _closing(console, verdict, str(run_dir), compared=comparison.golden is not None)


def _out_of_memory(record: RunRecord) -> list[str]:
    """Which kind of it, how sure that is, and what would show it."""
    oom = oom_of_run(record) if record.status == "oom" else None
    if oom is None:
        return []
    return [f"Out of memory, {oom.verdict.line}: {oom.verdict.reason}", f"Next: {oom.verdict.next_experiment}"]


def print_compare(
    console: Console, records: Sequence[RunRecord], comparison: Comparison, verdict: tuple[Outcome, ExitCode]
) -> None:
    """A comparison of runs that were measured earlier."""
    print_comparison(console, comparison)
    console.print()
    _closing(console, verdict, ", ".join(record.run_id for record in records), compared=comparison.golden is not None)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """The findings, what was unlike, and the reasons; nothing but a note without a golden."""
    golden = comparison.golden
    if golden is None:
        print_lines(console, [f"Not compared: {comparison.note}"])
        return
    print_lines(console, [f"Golden {comparison.golden_path} ({_origin(golden)})"])
    changed = ["Not the same experiment: the recipe point has changed since this golden"] if comparison.note else []
    print_lines(console, changed, style="yellow")
    show(console, _comparison_table(comparison.findings))
    judged = ((f.reason, figures.BY_NAME[f.metric].title) for f in comparison.findings if f.reason and _is_judged(f))
    for reason, titles in _titles_by_reason(judged).items():
        print_lines(console, _not_judged(reason, titles, comparison))
    print_lines(console, [f"Accepted: {d.text}" for d in comparison.likeness.differences if d.accepted])
    print_lines(console, _way_out(comparison))
    print_lines(console, [f"Caveat: {caveat}" for caveat in comparison.likeness.caveats], style="dim")


def _metrics_table(metrics: Metrics, *, is_whole: bool) -> Table:
    """Of a run that did not end well every peak is a peak so far."""
    table = plain_table(
        "Metric", "Median", "Mean", "Stdev", "Steps", "Worst rank", right=("Median", "Mean", "Stdev", "Steps")
    )
    for metric in METRICS:
        value = metric.read(metrics)
        if value is None:
            continue
        summary = getattr(metrics, metric.name) if metric.name in SUMMARY_METRICS else None
        peak = getattr(metrics, metric.name) if metric.unit == "bytes" else None
        table.add_row(
            metric.title,
            f"at least {figures.figure(metric, value)}" if peak and not is_whole else figures.figure(metric, value),
            figures.figure(metric, summary.mean) if summary else "",
            figures.spread(summary) if summary else "",
            str(summary.n) if summary else "",
            f"{peak.rank} (stage {peak.stage})" if peak else "",
        )
    return table


def _absent(metrics: Metrics) -> list[str]:
    return _by_reason((metrics.problems[m.name], m.title) for m in METRICS if m.name in metrics.problems)


def _by_reason(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """One line per reason, with all the metrics that share it."""
    return [f"{', '.join(shared)}: {reason}" for reason, shared in _titles_by_reason(pairs).items()]


def _titles_by_reason(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    titles: dict[str, list[str]] = {}
    for reason, title in pairs:
        titles.setdefault(reason, []).append(title)
    return titles


def _comparison_table(findings: Sequence[Finding]) -> Table:
    table = plain_table(
        "Metric", "Run", "Golden", "Change", "Allowed", "Verdict", right=("Run", "Golden", "Change", "Allowed")
    )
    for finding in findings:
        metric, verdict = figures.BY_NAME[finding.metric], finding.verdict
        table.add_row(
            metric.title,
            figures.figure(metric, finding.current),
            figures.figure(metric, finding.golden),
            figures.change(finding),
            figures.allowed_change(finding),
            Text(verdict.value.replace("_", " "), style=_STYLES[verdict.value]),
        )
    return table


def _origin(golden: GoldenRecord) -> str:
    if golden.kind == "external":
        return "external: published elsewhere"
    return f"measured in {golden.num_runs} run{'s' * (golden.num_runs > 1)}, promoted {golden.promoted_at[:10]}"


def _way_out(comparison: Comparison) -> list[str]:
    """How to get a verdict in spite of differences, where they alone withhold one: both sides have a value."""
    both = [f for f in comparison.findings if f.current is not None and f.golden is not None]
    withheld = {text for finding in both for text in finding.reason.split("; ")}
    names = [d.name for d in comparison.likeness.differences if not d.accepted and d.text in withheld]
    options = " ".join(f"--accept_difference {name}" for name in names)
    return [f"To judge all the same: {options}"] if names else []


def _not_judged(reason: str, titles: list[str], comparison: Comparison) -> list[str]:
    """Give each difference from the golden a line of its own, below the metrics whose verdict it withholds."""
    texts = reason.split("; ")
    if not set(texts) <= {d.text for d in comparison.likeness.differences}:
        return [f"{', '.join(titles)}: {reason}"]
    return [f"{', '.join(titles)}: not judged, because the run and the golden differ", *(f"  {text}" for text in texts)]


def _is_judged(finding: Finding) -> bool:
    """Whether the reason tells news: not for rows that are there for reading only."""
    return finding.verdict is not Verdict.NOT_GATED or figures.BY_NAME[finding.metric].gate is not None


def _closing(console: Console, verdict: tuple[Outcome, ExitCode], where: str, *, compared: bool) -> None:
    outcome, exit_code = verdict
    nothing = ", compared with nothing" if outcome == "pass" and not compared else ""
    word = "INTERRUPTED" if exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED) else outcome.upper()
    text = Text.assemble((word, _STYLES[outcome]), f" (exit {int(exit_code)}{nothing})  {where}")
    console.print(text, soft_wrap=True)
