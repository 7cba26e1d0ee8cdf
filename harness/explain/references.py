"""Finds the two sides of an explanation."""

from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.explain.facts import golden_side, run_side
from harness.explain.values import Side
from harness.records.folders import golden_dir
from harness.records.golden import GoldenRecord, spec_like
from harness.records.goldens import find_golden, named_golden
from harness.records.references import refuse_other_kinds
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run


@dataclass(frozen=True)
class Named:
    """The run or the golden that a reference names; ``name`` is its name in reports."""

    name: str
    record: RunRecord | GoldenRecord

    @property
    def spec(self) -> ExperimentSpec | None:
        return self.record.spec if isinstance(self.record, RunRecord) else spec_like(self.record)

    def side(self, like: ExperimentSpec | None = None) -> Side:
        """Return it as a side; ``like`` supplies the settings that a published golden does not state."""
        record = self.record
        return run_side(record) if isinstance(record, RunRecord) else golden_side(self.name, record, like)


def named(reference: str, results: Path | None = None, goldens: Path | None = None) -> Named:
    """Return a run, else the golden of that name. BadRequestError: the reference is neither."""
    path = Path(reference)
    if path.name == RECORD or (path / RECORD).is_file():
        return Named(reference, read_run(path, results))
    try:
        where, golden = named_golden(reference, goldens)
        return Named(_short(where, golden_dir(goldens)), golden)
    except BadRequestError as error:
        if path.is_file():
            refuse_other_kinds(reference, ("run",), results)
            raise
        golden_hint = error.remedy
    try:
        return Named(reference, read_run(reference, results))
    except BadRequestError as error:
        refuse_other_kinds(reference, ("run",), results)
        raise BadRequestError(
            f"{reference!r} is neither a golden nor a run: {error.message}",
            remedy=golden_hint if golden_hint.startswith("did you mean") else f"{error.remedy}; {golden_hint}",
        ) from error


def stored_golden(run: RunRecord, goldens: Path | None = None) -> Named:
    """Return the golden of the run's own settings. BadRequestError: there is none."""
    search = find_golden(run.spec, goldens, run.sources)
    if search.golden is None:
        raise BadRequestError(search.note, remedy="name a golden or another run: mbr-perf explain RUN GOLDEN")
    assert search.path is not None
    return Named(_short(search.path, golden_dir(goldens)), search.golden)


def _short(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder).with_suffix("")) if path.is_relative_to(folder) else str(path)
