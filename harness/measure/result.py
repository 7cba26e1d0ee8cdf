"""The result of a run as a page, with a table of its ranks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from harness.failures.verdict import class_name
from harness.judge import readings
from harness.judge.coverage import throughput_text
from harness.judge.gate import Comparison, Finding, Verdict, comparison_outcome
from harness.judge.likeness import is_reference_run
from harness.judge.readings import is_victim, window_of
from harness.measure.prediction import prediction_line
from harness.measure.values import Compared, CompareDocument, RunDocument
from harness.records.metrics import BY_NAME, METRICS, SUMMARY_METRICS, Metric
from harness.records.rank import RankRecord
from harness.records.run import RunRecord
from harness.show import figures
from harness.show.figures import ABSENT, cap_figure, clock_figure
from harness.show.page import (
    GAP,
    Block,
    Column,
    Details,
    Line,
    Page,
    Span,
    Table,
    Words,
    answer_line,
    details,
    listing,
    style_of,
    table,
    tabled,
)
from harness.show.request_text import record_facts
from harness.units import command_text, format_bytes, format_seconds, grouped, sentence, shortened

MAX_ROWS = 16


def _rank_blocks(record: RunRecord) -> Iterator[Block]:
    """The table of ranks. Above ``MAX_ROWS`` ranks only the fullest of each stage and the failed, with a note."""
    device_used = readings.device_used(record.nodes)
    shown, peak = _shown(record.ranks), BY_NAME["peak_allocated_bytes"]
    # Each rank's own median. The job's is higher: every step waits for the slowest rank.
    seconds = {rank.rank: window_of([rank], 1, *record.spec.measure.window).seconds for rank in shown}
    rows = (
        (
            str(rank.rank),
            str(rank.coordinates.pp),
            *(figures.figure(peak, read(rank)) for read in (readings.allocated, readings.reserved, device_used)),
            format_seconds(median(seconds[rank.rank])) if seconds[rank.rank] else ABSENT,
            clock_figure(rank.clocks),
            cap_figure(rank.clocks),
            _state(rank, record),
        )
        for rank in shown
    )
    columns = (Column(name, right=True) for name in ("Rank", "Stage", "Allocated", "Reserved", "Device used", "Step"))
    clocks = (Column(name, right=True, drop=1, optional=True) for name in ("SM clock", "Power cap"))
    yield table((*columns, *clocks, Column("State", long=True)), rows)
    if len(shown) < len(record.ranks):
        which = "The table shows the fullest rank of each stage and every failed rank; record.json lists all ranks."
        yield f"{len(record.ranks)} ranks. {which}"


def _shown(ranks: tuple[RankRecord, ...]) -> list[RankRecord]:
    if len(ranks) <= MAX_ROWS:
        return list(ranks)
    by_stage = grouped((rank.coordinates.pp, rank) for rank in ranks)
    fullest = {max(own, key=lambda rank: readings.allocated(rank) or 0).rank for own in by_stage.values()}
    chosen = fullest | {rank.rank for rank in ranks if rank.failure}
    return [rank for rank in ranks if rank.rank in chosen][: max(MAX_ROWS, len(fullest))]


def _state(rank: RankRecord, record: RunRecord) -> Words:
    if rank.failure is None:
        return "ok" if rank.finished else Span("unfinished", "doubt")
    full = [other.rank for other in record.ranks if other.failure and other.failure.kind == "oom"]
    if full and is_victim(rank.failure):
        return Span(f"ended because rank {full[0]} ran out of memory", "doubt")
    return Span(f"{rank.failure.kind} {record.when_failed(rank.failure)}".rstrip(), "bad")


def run_page(run: RunDocument) -> Page:
    """Return the verdict with step time and peak, the figures that support it, and the folder of the run."""
    record, facts, ranks = run.record, record_facts(run.record), tuple(_rank_blocks(run.record))
    table_of, against = _metrics_table(run, is_whole=record.status == "ok"), tuple(_comparison_blocks(run))
    parts: list[tuple[int, str, tuple[Block, ...]]] = [
        (len(record.ranks), "rank", ranks),
        (len(run.compared.findings), "comparison", against if run.golden else ()),
        (len(table_of.rows), "metric", (table_of,)),
    ]
    oom, out_of_memory = run.out_of_memory, tuple[Line, ...]()
    if oom is not None:
        first = f"Out of memory. {class_name(oom.oom_class)} ({oom.confidence}): {oom.reason}"
        out_of_memory = (Line(first, hang=2), Line(f"Next: {oom.next_experiment}", hang=2))
    support = parts.pop(0 if record.status != "ok" else 1 if run.golden else 2)
    return Page(
        (
            *support[2],
            listing((f"Suspect: {why}" for why in run.suspect), style="doubt"),
            *out_of_memory,
            GAP,
            Line(f"Kept: {run.run_dir}", whole=True),
            Details(len(facts.rows), "setting", (GAP, facts)),
            *(Details(num, noun, (GAP, *blocks)) for num, noun, blocks in parts if blocks),
            details("note", _notes(run)),
        ),
        answer=_run_line(run),
    )


def _notes(run: RunDocument) -> Iterator[str | Line]:
    record, metrics = run.record, run.metrics
    throughput = run.imported.own_throughput if run.imported else None
    yield from filter(
        None,
        (
            prediction_line(record.prediction, record.no_prediction),
            figures.clock_line(metrics.clocks),
            throughput and throughput_text(throughput),
        ),
    )
    yield from reasons((metrics.problems[m.name], m.title) for m in METRICS if m.name in metrics.problems)
    yield from (f"Note: {text}" for text in record.notes)
    if run.golden is None:
        yield f"Not compared: {run.compared.note}"


def _run_line(run: RunDocument) -> Line:
    """Return ``PASS: 3.19 s a step, peak 136.1 MiB on rank 0 (predicted 136.3 MiB), golden 136.3 MiB``."""
    record, is_alone = run.record, run.outcome == "pass" and run.golden is None
    ends = record.imported.provisional.partition(" (")[0] if record.imported else ""
    word, still = _word(run.compared)
    if not run.compared.provisional:
        word = Span("OK" if is_alone else run.outcome.upper(), style_of(run.outcome))
    if record.status != "ok":
        return answer_line((word, f": {record.failure or record.status}"))
    reason = _why(run)
    first, *more = [reason, *_line_figures(run)] if reason else _line_figures(run)
    texts = [*more, *([_ALONE] if is_alone else [])]
    return answer_line(
        (word, f": {first}"),
        *(f"{', ' if at or not reason else '; '}{text}" for at, text in enumerate(texts)),
        f". {sentence(ends)}{still}." if ends else "",
    )


def _word(comparison: Comparison) -> tuple[Span, str]:
    """Return the verdict, a provisional one that passes no gate with its exit code, and what follows a side's end."""
    verdict, (outcome, code) = comparison.outcome, comparison_outcome(comparison)
    is_open = outcome == "inconclusive" != verdict
    word = f"PROVISIONAL {verdict.upper()} (exit {code:d})" if is_open else verdict.upper()
    return Span(word, style_of(outcome)), "" if is_open else ": provisional"


def _why(run: RunDocument) -> str:
    found = [finding for finding in run.compared.findings if finding.verdict == run.outcome != "pass"]
    if run.outcome == "inconclusive":
        return next(iter([*run.suspect, *(finding.reason for finding in found), run.compared.note]), "")
    return ", ".join(
        f"{BY_NAME[f.metric].title} {figures.change(f)} (allowed {figures.allowed_change(BY_NAME[f.metric], f)})"
        for f in found
    )


def _unjudged_time(comparison: Comparison) -> str:
    """Return that a golden without a time left the step time unjudged; empty where it was judged, and without one."""
    if comparison.golden is None or {"step_time_s", "tflops_per_gpu"} & comparison.golden.metrics.keys():
        return ""
    return " (not judged: the golden has no time)"


def _line_figures(run: Compared) -> list[str]:
    seconds, peak, golden = run.metrics.step_time_s, run.metrics.peak_allocated_bytes, run.compared.golden
    shown = [f"{format_seconds(seconds.median)} a step{_unjudged_time(run.compared)}"] if seconds else []
    if peak:
        known = run.predicted.get("peak_allocated_bytes")
        predicted = f" (predicted {format_bytes(known)})" if known else ""
        shown.append(f"peak {format_bytes(peak.value)} on rank {peak.rank}{predicted}")
    if golden and (stored := golden.metrics.get("peak_allocated_bytes")):
        shown.append(f"golden {format_bytes(stored.value)}")
    return shown or ["nothing was measured"]


_PEAK = "peak_allocated_bytes"
_IN_LINE = {"step_time_s": "{} a step", "tflops_per_gpu": "{} TFLOP/s/GPU", _PEAK: "peak {}"}
_CHANGES = (Verdict.REGRESSION, Verdict.IMPROVEMENT)
_EQUAL = 0.0005  # a smaller change is shown as 0.0 %
_MIRRORED = 0.01  # throughput says no more than the step time where their product changes by less


def compared_line(
    comparison: Comparison, why: Iterable[str] = (), step_s: float | None = None, shown: Mapping[str, Metric] = BY_NAME
) -> Line:
    """Return a verdict with the changes of time and peak: ``REGRESSION: 2.741 s a step, +8.1 %; peak 5 GiB, equal``."""
    found = {finding.metric: finding for finding in comparison.findings if finding.current is not None}
    time, rate = (getattr(found.get(name), "change", None) for name in ("step_time_s", "tflops_per_gpu"))
    if time is not None and rate is not None and abs((1 + time) * (1 + rate) - 1) < _MIRRORED:
        del found["tflops_per_gpu"]
    texts = _figures(comparison, found, step_s, shown)
    is_open, (word, still) = comparison.outcome is Verdict.INCONCLUSIVE, _word(comparison)
    ends = "; ".join(text.partition(" (")[0] for text in comparison.provisional)  # which side ends before its job
    ends = "" if is_open or not ends else f" {sentence(ends)}{still}."
    reason = shortened(next(filter(None, why), ""), 80) if is_open else ""  # the table has all of it
    return answer_line((word, f": {reason}{'; ' * bool(reason)}{'; '.join(texts)}.{ends}"))


def _figures(
    comparison: Comparison, found: Mapping[str, Finding], step_s: float | None, shown: Mapping[str, Metric]
) -> list[str]:
    alone = step_s and "step_time_s" not in found
    decides = (name for name in found if found[name].verdict is comparison.outcome and name not in _IN_LINE)
    texts = [_in_line(found[name], shown) for name in decides if comparison.outcome in _CHANGES]
    texts += [f"{format_seconds(step_s or 0)} a step{_unjudged_time(comparison)}"] if alone else []
    texts += [_in_line(found[name], shown) for name in _IN_LINE if name in found]
    has = {"no step time": step_s or {"step_time_s", "tflops_per_gpu"} & {*found}, "no peak memory": _PEAK in found}
    return texts + [lack for lack, known in has.items() if not known]


def _in_line(finding: Finding, shown: Mapping[str, Metric]) -> str:
    metric = shown[finding.metric]
    template = _IN_LINE.get(finding.metric, f"{metric.title.lower()} {{}}")
    value = template.format(figures.figure(metric, finding.current))
    if finding.change is None:
        is_check = finding.verdict in _CHANGES
        return f"{value}, allowed {figures.allowed_change(metric, finding)}" if is_check else f"{value}, not compared"
    return f"{value}, {'equal' if abs(finding.change) < _EQUAL else figures.change(finding)}"


def compare_page(verdict: CompareDocument) -> Page:
    """Return the page of a comparison of recorded runs."""
    compared, step = verdict.compared, verdict.metrics.step_time_s
    runs = Line(f"Run {', '.join(verdict.run_ids)}", whole=True)
    if compared.golden is None and verdict.outcome == "pass":
        line = answer_line((Span("OK", style_of("pass")), f": {', '.join(_line_figures(verdict))}, {_ALONE}"))
    else:
        why = (*(f.reason for f in compared.findings if f.verdict is Verdict.INCONCLUSIVE), compared.note)
        line = compared_line(compared, why, step.median if step else None)
    return Page((*_comparison_blocks(verdict), runs), answer=line)


_ALONE = "no golden to compare with"


def _comparison_blocks(compared: Compared) -> Iterator[Block]:
    comparison, golden = compared.compared, compared.compared.golden
    if golden is None:
        yield Line(f"Not compared: {comparison.note}", hang=2)
        return
    is_run = is_reference_run(golden)
    what = "Reference run" if is_run else "Golden"
    origin = "" if is_run else f" ({golden.kind}, runs: {golden.num_runs}, promoted {golden.promoted_at[:10]})"
    if comparison.note:
        yield Line("Not the same experiment: the recipe point has changed since this golden", "doubt", hang=2)
    stored = [f for f in comparison.findings if f.golden is not None]
    yield comparison_table(stored, BY_NAME, "Run", what, compared.predicted)
    judged = ((f.reason, BY_NAME[f.metric].title) for f in stored if f.reason and _is_judged(f))
    for reason, titles in grouped(judged).items():
        yield Line(f"{', '.join(titles)}: {reason}", hang=2)
    yield Line(f"{what} {comparison.golden_path}{origin}", hang=2)
    yield listing(f"Accepted: {d.text}" for d in comparison.likeness.differences if d.accepted)
    yield from _way_out(comparison, compared)
    yield details("caveat", (f"Caveat: {caveat}" for caveat in comparison.likeness.caveats))


def _metrics_table(run: RunDocument, *, is_whole: bool) -> Table:
    """Return the metrics. ``is_whole`` False: the run did not finish, so its peaks are lower bounds."""
    rows, metrics = [], run.metrics
    for metric in METRICS:
        value = metric.read(metrics)
        if value is None:
            continue
        summary = getattr(metrics, metric.name) if metric.name in SUMMARY_METRICS else None
        peak = metrics.peaks.get(metric.name)
        rows.append(
            (
                metric.title,
                f"at least {figures.figure(metric, value)}" if peak and not is_whole else figures.figure(metric, value),
                figures.figure(metric, run.predicted.get(metric.name)),
                figures.figure(metric, summary.mean) if summary else "",
                figures.spread(summary) if summary else "",
                str(summary.n) if summary else "",
                f"{peak.rank} (stage {peak.stage})" if peak else "",
            )
        )
    spread = (Column(name, right=True, optional=True) for name in ("Predicted", "Mean", "Stdev", "Steps"))
    return table(("Metric", Column("Median", right=True), *spread, Column("Worst rank", optional=True)), rows)


def reasons(pairs: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """Yield one line for each reason of the pairs, with all titles that share it."""
    for reason, shared in grouped(pairs).items():
        yield Line(f"{', '.join(shared)}: {reason}", hang=2)


def comparison_table(
    findings: Sequence[Finding],
    metrics: Mapping[str, Metric],
    ours: str,
    theirs: str,
    predicted: Mapping[str, float | None] | None = None,
) -> Table:
    """Return a row for each finding; ``metrics``: their units; ``predicted``: figures of the same kind as measured."""
    known = predicted or {}
    return tabled(
        [(finding, metrics[finding.metric]) for finding in findings],
        [
            (Column("Metric"), lambda row: row[1].title),
            (Column(ours, right=True), lambda row: figures.figure(row[1], row[0].current)),
            (
                Column("Predicted", right=True, drop=2, optional=True),
                lambda row: figures.figure(row[1], known.get(row[0].metric)),
            ),
            (Column(theirs, right=True), lambda row: figures.figure(row[1], row[0].golden)),
            (Column("Change", right=True), lambda row: figures.change(row[0])),
            (Column("Allowed", right=True, drop=1), lambda row: figures.allowed_change(row[1], row[0])),
            (Column("Verdict"), lambda row: Span(row[0].verdict.text, style_of(row[0].verdict))),
        ],
    )


def _way_out(comparison: Comparison, compared: Compared) -> Iterator[Line]:
    """What answers if both sides have a value and only differences prevent a verdict."""
    withheld = "; ".join(f.reason for f in comparison.findings if None not in (f.current, f.golden)).split("; ")
    names = [d.name for d in comparison.likeness.differences if not d.accepted and d.text in withheld]
    if names:
        options = " ".join(f"--accept_difference {name}" for name in names)
        yield Line(f"To judge in spite of the differences: {options}", whole=True)
        if isinstance(compared, CompareDocument):
            explain = command_text("explain", compared.run_ids[0], comparison.golden_path or "")
            yield Line(f"To see what they change: {explain}", whole=True)


def _is_judged(finding: Finding) -> bool:
    return finding.verdict is not Verdict.NOT_GATED or BY_NAME[finding.metric].gate is not None
