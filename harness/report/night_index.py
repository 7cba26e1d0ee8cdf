"""All nights of a results folder as they were judged, read back from their own reports."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.records.folders import folders

JUDGED, PAGE, PLAN = Path("report") / "night.json", Path("report") / "night.html", "night.json"


class _Lenient(BaseModel):
    """What the index needs of a report; newer versions may write more."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class IndexFinding(_Lenient):
    """One metric's change against the golden."""

    metric: str
    change: float | None = None


class IndexCase(_Lenient):
    """One case of a night."""

    name: str
    outcome: str
    exit_code: int
    is_expected: bool = False
    is_infrastructure: bool = False
    refused: str | None = None
    comparison: tuple[IndexFinding, ...] = ()

    def change(self, metric: str) -> float | None:
        """Of that metric against the golden."""
        return next((finding.change for finding in self.comparison if finding.metric == metric), None)


class IndexNight(_Lenient):
    """One night, as ``report/night.json`` has it."""

    suite: str
    title: str
    outcome: str
    exit_code: int
    started_at: str
    shard: str | None = None
    num_runs_missing: int = 0
    cases: tuple[IndexCase, ...]


@dataclass(frozen=True)
class NightEntry:
    """A folder of a night. ``night`` is None where there is nothing to show, and ``problem`` says why."""

    folder: Path
    night: IndexNight | None
    problem: str = ""

    @property
    def page(self) -> Path | None:
        """The night's own page; None where there is none."""
        path = self.folder / PAGE
        return path if path.is_file() else None


def read_nights(nights_dir: Path) -> tuple[NightEntry, ...]:
    """Every night below ``nights_dir``, newest first; folders that hold no night are passed over."""
    found = [path for path in folders(nights_dir) if (path / PLAN).exists() or (path / JUDGED).exists()]
    return tuple(_entry(folder) for folder in reversed(found))


def case_names(entries: Iterable[NightEntry]) -> tuple[str, ...]:
    """The columns: cases of the newest night first, then those that only older ones had."""
    return tuple(dict.fromkeys(case.name for entry in entries if entry.night for case in entry.night.cases))


def _entry(folder: Path) -> NightEntry:
    try:
        return NightEntry(folder, IndexNight.model_validate_json((folder / JUDGED).read_bytes()))
    except FileNotFoundError:
        return NightEntry(folder, None, "not judged: still running, or ended before it was")
    except OSError as error:
        return NightEntry(folder, None, f"damaged: {JUDGED} cannot be read: {error.strerror}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        return NightEntry(folder, None, f"damaged: {JUDGED}: {where}: {first['msg']}")
