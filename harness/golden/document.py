"""JSON of the `golden` commands."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from harness.errors import BadRequestError
from harness.explain.contrast import contrast
from harness.explain.judge import changes
from harness.explain.values import Side, SideRow
from harness.golden.plan import Promotions
from harness.judge.differences import Group
from harness.records.golden import GoldenRecord
from harness.records.goldens import GoldenChange
from harness.show.json import Document, Shown, at


class GoldenRow(Shown):
    """One golden and its file."""

    path: Path
    golden: GoldenRecord


class DamagedRow(Shown):
    """A file that cannot be read, and why."""

    path: Path
    message: str


class GoldensDocument(Document):
    """``mbr-perf golden list --json``."""

    goldens: tuple[GoldenRow, ...]
    damaged: tuple[DamagedRow, ...]

    @classmethod
    def listed(cls, found: Mapping[Path, GoldenRecord], unread: Mapping[Path, BadRequestError]) -> Self:
        """Return all goldens of a folder."""
        damaged = [DamagedRow(path=path, message=error.message) for path, error in unread.items()]
        return cls.of(goldens=[GoldenRow(path=path, golden=golden) for path, golden in found.items()], damaged=damaged)


class GoldenDocument(GoldenRow, Document):
    """``mbr-perf golden show --json``. ``changes``: the values that its promotion replaced."""

    changes: tuple[GoldenChange, ...] = ()


class PromotedDocument(GoldenDocument):
    """``mbr-perf golden promote RUN --json``."""

    is_written: bool


class PromotedRow(GoldenDocument):
    """The golden of one case."""

    case: str = at("name")


class RefusedRow(Shown):
    """A case that was not promoted, and why."""

    case: str
    problems: tuple[str, ...]


class LeftOutRow(Shown):
    """A case that was skipped, and why."""

    case: str
    reason: str


class PromotionsDocument(Document):
    """``mbr-perf golden promote NIGHT --json``, by case."""

    is_written: bool
    promoted: tuple[PromotedRow, ...]
    refused: tuple[RefusedRow, ...]
    left_out: tuple[LeftOutRow, ...]
    exit_code: int = 0

    @classmethod
    def of_night(cls, found: Promotions, *, is_written: bool) -> Self:
        """Return what a night's promotion wrote, refused and skipped."""
        refused = [
            RefusedRow(case=case.name, problems=tuple(problem.message for problem in case.problems))
            for case in found.refused
        ]
        left_out = [LeftOutRow(case=name, reason=reason) for name, reason in found.left_out]
        return cls.of(is_written=is_written, promoted=found.prepared, refused=refused, left_out=left_out)


class RetiredDocument(GoldenDocument):
    """``mbr-perf golden retire --json``: its new path, and its path before."""

    retired_from: Path


class ExportDocument(Document):
    """``mbr-perf golden export --json``. ``document``: golden values of Megatron-Bridge by step."""

    format: str
    path: Path | None
    document: dict[str, object]
    notes: tuple[str, ...]


class MetricRow(Shown):
    """One value of both goldens; spreads are relative standard deviations of one run."""

    metric: str
    before: float | None = at("reference")
    after: float | None = at("run")
    change: float | None
    spread_before: float | None
    spread_after: float | None


class DifferenceRow(Shown):
    """A setting, or a fact about machine and software, that differs."""

    group: Group
    name: str
    before: str | None
    after: str | None


class NotRecorded(Shown):
    """Facts that only the other golden, or neither golden, recorded."""

    after: dict[Group, list[str]] = at("run")
    before: dict[Group, list[str]] = at("reference")
    neither: tuple[Group, ...]


class DifferenceDocument(Document):
    """``mbr-perf golden diff --json``. ``same``: how many facts agree, by group."""

    before: SideRow
    after: SideRow
    metrics: tuple[MetricRow, ...]
    differences: tuple[DifferenceRow, ...]
    same: dict[Group, int]
    not_recorded: NotRecorded
    exit_code: int = 0

    @classmethod
    def between(cls, before: Side, after: Side) -> Self:
        """Return the differences of two goldens or runs."""
        found = contrast(after, before)
        rows: Iterable[MetricRow] = (
            MetricRow.of(
                change,
                spread_before=before.spreads.get(change.metric),
                spread_after=after.spreads.get(change.metric),
            )
            for change in changes(after, before)
        )
        return cls.of(found, before=before, after=after, metrics=tuple(rows))
