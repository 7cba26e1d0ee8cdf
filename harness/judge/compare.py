"""Compares recorded runs with golden values."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from harness.errors import BadRequestError, ExitCode
from harness.experiment.experiment import ExperimentSpec, MeasureSpec
from harness.judge.derive import combine, derive
from harness.judge.gate import Comparison, Outcome, comparison_outcome, default_thresholds, judge, no_golden
from harness.judge.likeness import REFERENCE_RUN, Likeness, likeness
from harness.judge.plausible import doubts_of, impossible, impossible_golden
from harness.judge.promotion import PromotionOptions, promote
from harness.records.gating import GateOptions
from harness.records.goldens import GoldenSearch, find_golden, golden_file
from harness.records.metrics import Metrics, RunClocks
from harness.records.references import refuse_other_kinds
from harness.records.run import RunRecord
from harness.records.store import read_record, read_run, record_path


@dataclass(frozen=True)
class WindowOptions:
    """The window of steps, where the command line overrides the run's. Fields as in `MeasureSpec`."""

    skip_first_percent_time: float | None = None
    eval_time_start_step: int | None = None
    eval_time_end_step: int | None = None

    def over(self, measure: MeasureSpec) -> MeasureSpec:
        """Return the run's window with the given parts replaced. BadRequestError for values out of range."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        try:
            return MeasureSpec(**measure.model_dump() | given)
        except ValidationError as error:
            listed = "; ".join(_said(problem, given) for problem in error.errors())
            raise BadRequestError(
                listed, remedy=f"the run has steps 0 to {measure.max_steps - 1}; the skipped share is below 1"
            ) from error


_AS_MEASURED = WindowOptions()


def _said(problem: ErrorDetails, given: Iterable[str]) -> str:
    names = ", ".join(f"--{name}" for name in (problem["loc"] or given))
    return f"{names}: {problem['msg'].removeprefix('Value error, ')}"


def find_reference(
    reference: str | None, record: RunRecord, options: GateOptions, results: Path | None
) -> GoldenSearch:
    """Find a golden by name, file, folder or settings; a run stands for a golden that was promoted from it."""
    if reference is None:
        return find_golden(record.spec, options.golden_values_path, record.sources)
    path = Path(reference) if Path(reference).exists() else golden_file(reference) or Path(reference)
    runs = [str(each.parent) for each in sorted(path.glob("*/record.json"))]
    is_run = runs or path.name == "record.json" or (path / "record.json").exists() or not path.exists()
    if not is_run:
        refuse_other_kinds(path.absolute(), ("run",), results)
        return find_golden(record.spec, path, record.sources)
    others = [read_run(each, results) for each in runs or [reference]]
    golden = promote(others, PromotionOptions(*REFERENCE_RUN, datetime.now(UTC), accept_spread=True))
    return GoldenSearch(golden, path if path.exists() else Path(others[0].run_id))


def require_repeats(records: Sequence[RunRecord]) -> ExperimentSpec:
    """Return the settings of repeats. BadRequestError if they differ."""
    fingerprints = {record.fingerprint for record in records}
    if len(fingerprints) != 1:
        raise BadRequestError(f"repeats must have the same settings; fingerprints: {', '.join(sorted(fingerprints))}")
    return records[0].spec


def compare_runs(
    records: Sequence[RunRecord], search: GoldenSearch, options: GateOptions, window: WindowOptions = _AS_MEASURED
) -> tuple[Metrics, Comparison]:
    """Return the figures of a run or repeats, and the verdict. BadRequestError if the runs are not repeats."""
    require_repeats(records)
    each = [derive(record, window.over(record.spec.measure)) for record in records]
    metrics = combine(each)
    golden = search.golden
    if golden is None:
        required = options.require_golden or options.golden_values_path is not None or search.is_damaged
        ended = sorted({record.status for record in records} - {"ok"})
        why = [f"the run ended as {', '.join(ended)}"] if ended else _of_each(impossible, records, each)
        return metrics, no_golden(metrics, "; ".join((*why, search.note)), required=required or bool(why))
    thresholds = default_thresholds(
        records[0].spec,
        min(len(records), golden.num_runs),
        timing=options.timing_threshold,
        memory=options.memory_threshold,
    )
    alike = _likeness_of_all(records, search, options.accept_differences, metrics.clocks)
    doubts = (*_of_each(_doubts, records, each), *impossible_golden(golden))
    comparison = judge(metrics, golden, thresholds, likeness=alike, doubts=doubts)
    if any(record.status != "ok" for record in records):  # these figures are incomplete, so that a change means nothing
        comparison = replace(comparison, findings=tuple(replace(found, change=None) for found in comparison.findings))
    provisional = tuple(record.imported.provisional for record in records if record.imported)
    return metrics, replace(
        comparison, golden_path=str(search.path), note=search.note, provisional=tuple(filter(None, provisional))
    )


def compare_stored(
    runs: Sequence[str], golden: str | None, options: GateOptions, window: WindowOptions, results: Path | None
) -> tuple[dict[Path, RunRecord], Metrics, Comparison, tuple[Outcome, ExitCode]]:
    """Return stored runs by folder, their figures, the comparison and the verdict. BadRequestError."""
    if golden is not None and options.golden_values_path is not None:
        raise BadRequestError(
            f"GOLDEN {golden} and --golden_values_path {options.golden_values_path} both name a golden; give only one"
        )
    options = options.model_copy(update={"require_golden": options.require_golden or golden is not None})
    found = [*dict.fromkeys(record_path(reference, results).absolute() for reference in runs)]
    records = [read_record(path) for path in found]
    search = find_reference(golden, records[0], options, results)
    metrics, comparison = compare_runs(records, search, options, window)
    stored = dict(zip((path.parent for path in found), records, strict=True))
    return stored, metrics, comparison, comparison_outcome(comparison, fail_on_improvement=options.fail_on_improvement)


def _of_each(
    find: Callable[[RunRecord, Metrics], Sequence[str]], records: Sequence[RunRecord], each: Sequence[Metrics]
) -> list[str]:
    found = (text for record, metrics in zip(records, each, strict=True) for text in find(record, metrics))
    return list(dict.fromkeys(found))


def _doubts(record: RunRecord, metrics: Metrics) -> list[str]:
    doubts = [f"suspect: {why}" for why in doubts_of(record, metrics)]
    if record.status != "ok":
        doubts.insert(0, f"the run ended as {record.status}: {record.failure or 'no failure recorded'}")
    return doubts


def _likeness_of_all(
    records: Sequence[RunRecord], search: GoldenSearch, accept: tuple[str, ...], clocks: RunClocks | None
) -> Likeness:
    assert search.golden is not None
    each = [likeness(record, search.golden, accept, clocks) for record in records]
    differences = tuple(dict.fromkeys(difference for alike in each for difference in alike.differences))
    return Likeness(differences, each[0].caveats)
