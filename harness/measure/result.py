"""The result of a run as a page, with a table of its ranks."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from harness.errors import ExitCode
from harness.judge import readings
from harness.judge.compare import is_reference_run
from harness.judge.coverage import own_time_text, throughput_text
from harness.judge.gate import Comparison, Finding, Verdict
from harness.judge.readings import is_victim, window_of
from harness.measure.prediction import prediction_line, whole_run
from harness.measure.values import Compared, CompareDocument, OutOfMemory, RunDocument
from harness.records.golden import GoldenRecord
from harness.records.metrics import BY_NAME, METRICS, SUMMARY_METRICS, Metrics
from harness.records.rank import RankRecord
from harness.records.run import RunRecord
from harness.show import figures
from harness.show.figures import ABSENT, cap_figure, clock_figure
from harness.show.page import (
    GAP,
    Block,
    Column,
    Facts,
    Line,
    Page,
    Span,
    Table,
    Words,
    listing,
    style_of,
    table,
    tabled,
)
from harness.show.request_text import VALUES, record_facts
from harness.units import format_seconds, grouped

MAX_ROWS = 16
CLOCKS = ("SM clock", "Power cap")


def _rank_blocks(record: RunRecord) -> Iterator[Block]:
    """The table of ranks. Above ``MAX_ROWS`` ranks only the fullest of each stage and the failed, with a note."""
    device_used = readings.device_used(record.nodes)
    with_clocks = any(rank.clocks for rank in record.ranks)
    names = ("Rank", "Stage", "Allocated", "Reserved", "Device used", "Step", *(CLOCKS if with_clocks else ()))
    shown, peak = _shown(record.ranks), BY_NAME["peak_allocated_bytes"]
    rows = (
        (
            str(rank.rank),
            str(rank.coordinates.pp),
            *(figures.figure(peak, read(rank)) for read in (readings.allocated, readings.reserved, device_used)),
            _step(rank, record),
            *((clock_figure(rank.clocks), cap_figure(rank.clocks)) if with_clocks else ()),
            _state(rank, record),
        )
        for rank in shown
    )
    columns = (Column(name, right=True, drop=int(name in CLOCKS)) for name in names)
    yield table((*columns, Column("State", long=True)), rows)
    if len(shown) < len(record.ranks):
        which = "The table shows the fullest rank of each stage and every failed rank; record.json lists all ranks."
        yield f"{len(record.ranks)} ranks. {which}"


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


def _step(rank: RankRecord, record: RunRecord) -> str:
    """Return the rank's own median over the window. The job's is higher: every step waits for the slowest rank."""
    seconds = window_of([rank], 1, *record.spec.measure.window).seconds
    return format_seconds(median(seconds)) if seconds else ABSENT


def _state(rank: RankRecord, record: RunRecord) -> Words:
    if rank.failure is None:
        return "ok" if rank.finished else Span("unfinished", "doubt")
    full = [other.rank for other in record.ranks if other.failure and other.failure.kind == "oom"]
    if full and is_victim(rank.failure):
        return Span(f"ended because rank {full[0]} ran out of memory", "doubt")
    return Span(f"{rank.failure.kind} {record.when_failed(rank.failure)}".rstrip(), "bad")


def run_page(run: RunDocument, *, with_request: bool = True) -> Page:
    """Return the page of a run from the request to the verdict. The last line is the verdict.

    ``with_request`` False: the reader has seen the request, so the page begins with the id of the run.
    """
    record, metrics = run.record, run.metrics
    predicted = prediction_line(record.prediction, record.no_prediction, whole_run(record, metrics))
    own = [text for text in (throughput_text(record, metrics), own_time_text(record, metrics)) if text]
    return Page(
        (
            record_facts(record) if with_request else Facts((("Run", record.run_id),), VALUES),
            GAP,
            *_rank_blocks(record),
            GAP,
            _metrics_table(metrics, is_whole=record.status == "ok"),
            *_by_reason((metrics.problems[m.name], m.title) for m in METRICS if m.name in metrics.problems),
            listing(line for line in (figures.clock_line(metrics.clocks), predicted) if line),
            listing((f"Suspect: {why}" for why in run.suspect), style="doubt"),
            listing(f"Note: {note}" for note in (*record.notes, *own)),
            listing([f"Failure: {record.failure}"] if record.failure else [], style="bad"),
            *_out_of_memory(run.out_of_memory),
            GAP,
            *_comparison_blocks(run.compared),
        ),
        answer=_closing(run, str(run.run_dir)),
    )


def _out_of_memory(oom: OutOfMemory | None) -> Iterator[Line]:
    if oom is not None:
        yield Line(f"Out of memory, class: {oom.oom_class} ({oom.confidence}): {oom.reason}", hang=2)
        yield Line(f"Next: {oom.next_experiment}", hang=2)


def compare_page(verdict: CompareDocument) -> Page:
    """Return the page of a comparison of recorded runs."""
    return Page(tuple(_comparison_blocks(verdict.compared)), answer=_closing(verdict, ", ".join(verdict.run_ids)))


def _comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    golden = comparison.golden
    if golden is None:
        yield Line(f"Not compared: {comparison.note}", hang=2)
        return
    what, origin = ("Reference run", "") if is_reference_run(golden) else ("Golden", f" ({_origin(golden)})")
    yield Line(f"{what} {comparison.golden_path}{origin}", hang=2)
    if comparison.note:
        yield Line("Not the same experiment: the recipe point has changed since this golden", "doubt", hang=2)
    yield _comparison_table(comparison.findings, what)
    judged = ((f.reason, BY_NAME[f.metric].title) for f in comparison.findings if f.reason and _is_judged(f))
    for reason, titles in grouped(judged).items():
        yield listing(_not_judged(reason, titles, comparison), hang=4)
    yield listing(f"Accepted: {d.text}" for d in comparison.likeness.differences if d.accepted)
    yield from _way_out(comparison)
    yield listing((f"Caveat: {caveat}" for caveat in comparison.likeness.caveats), style="dim")


def _metrics_table(metrics: Metrics, *, is_whole: bool) -> Table:
    """Return the metrics. ``is_whole`` False: the run did not finish, so its peaks are lower bounds."""
    rows = []
    for metric in METRICS:
        value = metric.read(metrics)
        if value is None:
            continue
        summary = getattr(metrics, metric.name) if metric.name in SUMMARY_METRICS else None
        peak = metrics.peaks.get(metric.name)
        rows.append((
            metric.title,
            f"at least {figures.figure(metric, value)}" if peak and not is_whole else figures.figure(metric, value),
            figures.figure(metric, summary.mean) if summary else "",
            figures.spread(summary) if summary else "",
            str(summary.n) if summary else "",
            f"{peak.rank} (stage {peak.stage})" if peak else "",
        ))  # fmt: skip
    spread = (Column(name, right=True, optional=True) for name in ("Mean", "Stdev", "Steps"))
    return table(("Metric", Column("Median", right=True), *spread, Column("Worst rank", optional=True)), rows)


def _by_reason(pairs: Iterable[tuple[str, str]]) -> Iterator[Line]:
    for reason, shared in grouped(pairs).items():
        yield Line(f"{', '.join(shared)}: {reason}", hang=2)


def _comparison_table(findings: Sequence[Finding], against: str) -> Table:
    return tabled(
        [(finding, BY_NAME[finding.metric]) for finding in findings],
        [
            (Column("Metric"), lambda row: row[1].title),
            (Column("Run", right=True), lambda row: figures.figure(row[1], row[0].current)),
            (Column(against, right=True), lambda row: figures.figure(row[1], row[0].golden)),
            (Column("Change", right=True), lambda row: figures.change(row[0])),
            (Column("Allowed", right=True, drop=1), lambda row: figures.allowed_change(row[1], row[0])),
            (Column("Verdict"), lambda row: Span(row[0].verdict.replace("_", " "), style_of(row[0].verdict))),
        ],
    )


def _origin(golden: GoldenRecord) -> str:
    if golden.kind == "external":
        return "external: published elsewhere"
    return f"measured in {golden.num_runs} run{'s' * (golden.num_runs > 1)}, promoted {golden.promoted_at[:10]}"


def _way_out(comparison: Comparison) -> Iterator[Line]:
    """The options that accept the differences, if both sides have a value and only differences prevent a verdict."""
    both = [f for f in comparison.findings if f.current is not None and f.golden is not None]
    withheld = {text for finding in both for text in finding.reason.split("; ")}
    names = [d.name for d in comparison.likeness.differences if not d.accepted and d.text in withheld]
    if names:
        options = " ".join(f"--accept_difference {name}" for name in names)
        yield Line(f"To judge in spite of the differences: {options}", whole=True)


def _not_judged(reason: str, titles: list[str], comparison: Comparison) -> list[str]:
    """The differences from the golden, each on its own line below the metrics that get no verdict because of it."""
    texts = reason.split("; ")
    if not set(texts) <= {d.text for d in comparison.likeness.differences}:
        return [f"{', '.join(titles)}: {reason}"]
    is_run = comparison.golden is not None and is_reference_run(comparison.golden)
    differ = "the two runs differ" if is_run else "the run and the golden differ"
    return [f"{', '.join(titles)}: not judged, because {differ}", *(f"  {text}" for text in texts)]


def _is_judged(finding: Finding) -> bool:
    """Return whether the metric has a gate or a verdict; other rows are only informative."""
    return finding.verdict is not Verdict.NOT_GATED or BY_NAME[finding.metric].gate is not None


def _closing(verdict: Compared, where: str) -> Line:
    is_alone = verdict.outcome == "pass" and verdict.golden is None
    is_cut = verdict.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
    word = Span("OK" if is_alone else "INTERRUPTED" if is_cut else verdict.outcome.upper(), style_of(verdict.outcome))
    reason = ". No golden values to compare with." if is_alone else ""
    return Line((word, f" (exit {verdict.exit_code}){reason}  {where}"), whole=True)
