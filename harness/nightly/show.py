"""A night for people: as a page for a terminal, Markdown and HTML, its progress and its answer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from harness.batch.batch import BatchDisplay
from harness.errors import ExitCode
from harness.judge.gate import worst
from harness.launch.cluster_job import ClusterJob
from harness.measure.result import comparison_table
from harness.nightly.outlook import CaseOutlook, night_plan_document, outlook_page
from harness.nightly.remarks import case_title, explanation, further_command, next_steps, to_copy
from harness.nightly.values import SPEED, CaseVerdict, NightVerdict
from harness.nightly.words import about, answer, finding_of, headline, is_red, one_line, outcome_text, threshold_text
from harness.records.metrics import BY_NAME
from harness.records.night import NightPlan
from harness.show import json
from harness.show.figures import ABSENT, figure
from harness.show.page import (
    CASE,
    GAP,
    Block,
    Column,
    Details,
    Line,
    Listing,
    Only,
    Page,
    Section,
    Span,
    Style,
    Table,
    Words,
    answer_line,
    style_of,
    tabled,
)
from harness.show.terminal import show_page, show_stopped
from harness.units import command_text, counted, format_percent


def night_page(verdict: NightVerdict) -> Page:
    """Return a night, finished or not. Each case is at the anchor :func:`anchor` of its name."""
    return Page(
        title=verdict.plan.title,
        headline=headline(verdict),
        about=about(verdict),
        notes=verdict.plan.notes,
        answer=answer_line(answer(verdict)),
        footer=f"{verdict.night_dir}",
        blocks=(
            *_tables(verdict.cases),
            GAP,
            Listing(tuple(Line(step, whole=True) for step in next_steps(verdict))),
            GAP,
            Only("terminal", (f"Night: {verdict.night_dir}",)),
            *_details(verdict.cases),
        ),
    )


def _tables(cases: Sequence[CaseVerdict]) -> Iterable[Block]:
    """Yield the table; at a terminal that of the cases that need attention, each with its reason and a command."""
    red, green = ([case for case in cases if is_red(case) is wanted] for wanted in (True, False))
    first, rest = (red, green) if red else (green, [])  # a green night shows what it judged
    causes = Listing(tuple(line for case in red for line in _cause(case)))
    yield Only("pages", (case_table(cases),))
    yield Only("terminal", (case_table(first), GAP, causes))
    if rest:
        yield Details(len(rest), CASE, (Only("terminal", (GAP, case_table(rest))),))


def _cause(case: CaseVerdict) -> Iterable[Line]:
    if reason := next(iter(explanation(case)), ""):
        yield Line(f"{case.planned.name}: {reason}", hang=2)
    if command := further_command(case):
        yield Line(f"  {command}", whole=True)


def _details(cases: Sequence[CaseVerdict]) -> Iterable[Block]:
    red = tuple(_section(case) for case in cases if is_red(case))
    green = tuple(_section(case) for case in cases if not is_red(case))
    if red:
        yield Details(len(red), "explanation", (Section("Cases that need attention", red),))
    if green:
        yield Only("html", (Section(f"{'The other' if red else 'All'} cases", green),))


def anchor(case: str) -> str:
    """Return the fragment of a case's place on the page, for a link."""
    return f"case-{quote(case, safe='')}"


def _style(case: CaseVerdict) -> Style:
    return "expected" if case.is_expected else style_of(case.outcome)


def case_table(cases: Sequence[CaseVerdict]) -> Table:
    """Return a row per case."""
    # fmt: off
    columns: list[tuple[Column, Callable[[CaseVerdict], Words]]] = [
        (Column("Case", whole=True), lambda case: Span(case.planned.name, link=f"#{quote(anchor(case.planned.name))}")),
        (Column("Outcome"), lambda case: Span(outcome_text(case), _style(case))),
        (Column("TFLOP/s/GPU", right=True), _speed),
        (Column("Golden", right=True, drop=2, detail=True),
         lambda case: figure(BY_NAME[SPEED], found.golden if (found := finding_of(case, SPEED)) else None)),
        (Column("Change", right=True), _change),
        (Column("Peak memory", right=True, drop=1), _memory),
        (Column("Remark", drop=5, long=True), remark_text),
    ]
    # fmt: on
    return tabled(cases, columns)


def remark_text(case: CaseVerdict) -> str:
    """Return the remarks of a row: expectations, a missing golden, drift, retries. Reasons follow below the table."""
    return "; ".join(one_line(text) for text in _remarks(case))


def _speed(case: CaseVerdict) -> str:
    finding, metric = finding_of(case, SPEED), BY_NAME[SPEED]
    return figure(metric, finding.current if finding else metric.read(case.metrics) if case.metrics else None)


def _change(case: CaseVerdict) -> str:
    finding = finding_of(case, SPEED)
    return ABSENT if finding is None or finding.change is None else format_percent(finding.change)


def _memory(case: CaseVerdict) -> str:
    """Return the memory figure with the worst verdict, allocated of equal ones, and its change."""
    finding = worst(finding for finding in case.findings if BY_NAME[finding.metric].gate == "memory")
    metric = BY_NAME[finding.metric if finding else "peak_allocated_bytes"]
    value = finding.current if finding else metric.read(case.metrics) if case.metrics else None
    kind = "" if metric.name == "peak_allocated_bytes" else f" {metric.title.removeprefix('Peak ')}"
    change = f" ({format_percent(finding.change)})" if finding and finding.change is not None else ""
    return ABSENT if value is None else f"{figure(metric, value)}{kind}{change}"


def _remarks(case: CaseVerdict) -> Iterable[str]:
    if case.remark:
        yield case.remark
    if case.runs and case.golden_path is None:
        yield "golden cannot be read" if case.is_golden_damaged else "no golden"
    if case.drift:
        yield f"{counted(len(case.drift), 'difference')} from the golden's environment"
    if (found := finding_of(case, SPEED)) and found.allowed_by == "3 spreads":
        yield f"allowed {threshold_text(found)}"
    if pairs := case.pairs:
        yield pairs.fault or ((speed := pairs.of(SPEED)) and pairs.text_of(speed)) or "pairs without throughput"
    if any(run.purpose == "retry" for run in case.runs):
        yield "retried"


def _section(case: CaseVerdict) -> Section:
    lines = (*(Line(line, hang=2) for line in explanation(case)), *(Line(line, whole=True) for line in to_copy(case)))
    return Section(
        case_title(case),
        (Listing(lines), Only("html", (comparison_table(case.findings, BY_NAME, "Tonight", "Golden"),))),
        "plain" if case.outcome == "pass" else _style(case),
        indent=2,
        anchor=anchor(case.planned.name),
        folded=not is_red(case),
    )


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Requested copies; None: not requested. ``html`` is a folder; ``step_summary`` is a file to append to."""

    junit: Path | None = None
    step_summary: Path | None = None
    html: Path | None = None


@dataclass(frozen=True)
class NightDisplay(BatchDisplay):
    """Where the answer and the narration of a night go, and files besides its own folder."""

    outputs: Outputs = field(default_factory=Outputs)

    def plan(self, plan: NightPlan, cases: tuple[CaseOutlook, ...], jobs: Sequence[ClusterJob]) -> None:
        """Show the dry run; for ``jobs`` also the batch files of the first round and the commands to submit them."""
        if self.as_json:
            json.answer(night_plan_document(plan, cases, jobs))
            return
        show_page(outlook_page(plan, cases))
        self.batch_files(jobs)

    def begins(self, plan: NightPlan, night_dir: Path) -> None:
        """Print, before the first run, which cases cannot run and why, and where the results will be."""
        refused = [f"{case.name}: refused: {case.refused}" for case in plan.cases if case.refused]
        self.narrate(*(f"Note: {note}" for note in plan.notes), *refused, f"Kept in {night_dir}")

    def result(self, verdict: NightVerdict, reports: Iterable[Path]) -> None:
        """Print the answer. For an interrupted night, also print how to continue."""
        resume = command_text("nightly", "--resume", verdict.night_dir)
        stopped = verdict.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
        if self.as_json:
            json.answer(verdict.model_copy(update={"report": tuple(reports)}))
        elif stopped:
            to_do = f"{verdict.plan.suite}, {counted(verdict.num_due, 'run')} still to do"
            show_stopped(to_do, verdict.exit_code, None, resume)
        else:
            show_page(night_page(verdict))
        if verdict.num_due and (self.as_json or not stopped):
            self.narrate(f"Not all runs are done. To continue: {resume}")
