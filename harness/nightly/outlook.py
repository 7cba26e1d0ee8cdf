"""A night before it runs: its cases, their goldens, and how they went last time."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.experiment.experiment import ExperimentSpec
from harness.history.record import HistoryRecord
from harness.records.night import Case, NightPlan
from harness.resolve.suite import shared_golden_lines
from harness.show.figures import ABSENT
from harness.show.page import GAP, Column, Page, listing, tabled
from harness.units import format_bytes


@dataclass(frozen=True)
class CaseOutlook:
    """A planned case.

    ``no_golden``: why there is none, why it cannot be read, or that its recipe point has changed since. ``last``: its newest
    run in history. Where this case of this suite has none, that of the same settings outside suites, if there is one.
    """

    case: Case
    golden_path: Path | None
    no_golden: str
    last: HistoryRecord | None
    is_golden_damaged: bool = False


def outlook_page(plan: NightPlan, cases: tuple[CaseOutlook, ...]) -> Page:
    """Return the table of `nightly --dryrun`, and why cases do not run or have no golden."""
    refused = [f"{item.case.name}: refused: {item.case.refused}" for item in cases if item.case.refused]
    lines = [*refused, *_damaged(cases), *_changed(cases), *_absent(cases), *_shared(cases), _total(plan)]
    return Page(title=plan.title, notes=plan.notes, blocks=(tabled(cases, _COLUMNS), GAP, listing(lines)))


def _of_spec(read: Callable[[ExperimentSpec], str]) -> Callable[[CaseOutlook], str]:
    return lambda item: read(item.case.spec) if item.case.spec else ABSENT


def _peak(item: CaseOutlook) -> str:
    return format_bytes(item.case.prediction.peak_bytes) if item.case.spec and item.case.prediction else ABSENT


def _golden(item: CaseOutlook) -> str:
    if item.case.refused:
        return ABSENT
    if item.is_golden_damaged:
        return "damaged"
    return "no" if item.golden_path is None else "changed" if item.no_golden else "yes"


def _last(record: HistoryRecord | None) -> str:
    """Return ``pass 2026-01-02``: of the case in its night, else of the run."""
    if record is None:
        return ABSENT
    text = f"{record.outcome or record.status} {record.started_at[:10]}"
    return text if record.suite_case else f"{text} (outside suites)"


def _would_run(case: Case) -> str:
    if case.refused:
        return "refused"
    times = "1 run" if case.repeats == 1 else f"{case.repeats} runs"
    return f"{times}, expected {case.expected.outcome} until {case.expected.until}" if case.expected else times


_COLUMNS = (
    (Column("Case", whole=True), lambda item: item.case.name),
    (Column("Setting"), _of_spec(lambda spec: f"{spec.recipe} {spec.task} {spec.compute_dtype} {spec.recompute.text}")),
    (Column("GPUs", right=True, drop=1), _of_spec(lambda spec: f"{spec.num_gpus} {spec.gpu}")),
    (Column("Predicted peak", right=True), _peak),
    (Column("Golden", drop=2), lambda item: _golden(item) if item.case.spec else ABSENT),
    (Column("Last", drop=3), lambda item: _last(item.last) if item.case.spec else ABSENT),
    (Column("Would run"), lambda item: _would_run(item.case)),
)


def _damaged(cases: tuple[CaseOutlook, ...]) -> list[str]:
    """Lines on goldens that cannot be read. Each makes its case inconclusive, required or not."""
    lines = [
        f"{item.case.name}: {item.no_golden}" for item in cases if item.is_golden_damaged and not item.case.refused
    ]
    if not lines:
        return []
    count = "1 golden" if len(lines) == 1 else f"{len(lines)} goldens"
    return [*lines, f"{count} cannot be read: inconclusive until you repair the file or restore it from git"]


def _changed(cases: tuple[CaseOutlook, ...]) -> list[str]:
    """Lines on goldens of changed recipe points. Each makes its case inconclusive until it is replaced."""
    lines = [f"{item.case.name}: {item.no_golden}" for item in cases if _golden(item) == "changed"]
    fix = "inconclusive until `mbr-perf golden promote NIGHT --every --replace_other --reason ...` replaces the golden"
    return [*lines, fix] if lines else []


_OTHER_SETTINGS = "is for other settings"


def _absent(cases: tuple[CaseOutlook, ...]) -> list[str]:
    """Lines on missing goldens, if a case requires one. Names a case only if its problem is more than a missing file.

    The count includes cases whose golden is optional.
    """
    without = [item for item in cases if _golden(item) == "no"]
    lacking = [item for item in without if item.case.is_golden_required]
    named = [item for item in lacking if not item.no_golden.endswith("does not exist")]
    if not lacking:
        return []
    count = "1 case has" if len(without) == 1 else f"{len(without)} cases have"
    some = f"{len(lacking)} of them " if len(lacking) < len(without) else ""
    fix = f"{some}inconclusive until `mbr-perf golden promote NIGHT --every --reason ...` adds a golden{'; for the others a golden is optional' * bool(some)}"
    other = "; where a golden of other settings has the name, add --replace_other, or use another --golden_dir"
    taken = other * any(_OTHER_SETTINGS in item.no_golden for item in named)
    return [*(f"{item.case.name}: {item.no_golden}" for item in named), f"{count} no golden: {fix}{taken}"]


def _shared(cases: tuple[CaseOutlook, ...]) -> list[str]:
    """Lines on cases that share one golden."""
    return shared_golden_lines(
        (case.name, f"{case.spec.gpu}/{case.spec.slug}", case.expected.outcome if case.expected else None)
        for case in (item.case for item in cases)
        if case.spec and not case.refused
    )


def _total(plan: NightPlan) -> str:
    runs = sum(case.repeats for case in plan.cases if not case.refused)
    refused = sum(bool(case.refused) for case in plan.cases)
    text = "1 case" if len(plan.cases) == 1 else f"{len(plan.cases)} cases"
    text += f", {refused} of them refused" if refused else ""
    aa = f"; {2 * plan.aa.num_pairs} runs of {plan.aa.case} as the night's A/A" if plan.aa else ""
    return (
        f"{text}; {'1 run' if runs == 1 else f'{runs} runs'}. Then, for each case, at most {plan.retries} more after an infrastructure "
        f"fault and {plan.confirm} more to confirm a regression{aa}"
    )
