"""Compares every recipe point with the configuration that Megatron-Bridge resolved for it."""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml
from ask import BridgePoint, bridge_points

from harness.experiment.experiment import ExperimentSpec
from harness.foreign.bridge import Container, read_container
from harness.foreign.container_fields import effective_values, other_effects
from harness.foreign.settings import rows_of, settings_in
from harness.resolve.recipe import build_spec, merge

TABLE = Path(__file__).with_name("kept.yaml")
_IDENTITY = ("recipe", "family", "task", "gpu", "gpus_per_node", "num_gpus")  # a container lacks them, or may


@dataclass(frozen=True)
class Kept:
    """A field that differs on purpose; ``points`` names points, whole recipes, or ``all``."""

    field: str
    points: tuple[str, ...]
    reason: str

    def covers(self, field: str, point: str) -> bool:
        """Return whether a difference of this field at this point is listed."""
        recipe = point.partition(".")[0]
        return field == self.field and any(name in ("all", recipe, point) for name in self.points)


def read_kept(path: Path = TABLE) -> tuple[Kept, ...]:
    """Return the rows of the table; every row gives a reason."""
    rows = yaml.safe_load(path.read_text())["kept"]
    return tuple(
        Kept(row["field"], ("all",) if row["points"] == "all" else tuple(row["points"]), row["reason"]) for row in rows
    )


@dataclass(frozen=True)
class Difference:
    """One field of one point; ``kept`` is its row of the table, None for a difference that is not listed."""

    point: str
    field: str
    ours: str
    theirs: str
    kept: Kept | None


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    ``absent`` are points without a configuration, ``without_point`` files that no point has as its source,
    ``stale`` rows of the table without a difference.
    """

    num_points: int
    num_fields: int
    differences: tuple[Difference, ...]
    absent: tuple[str, ...]
    without_point: tuple[str, ...]
    stale: tuple[Kept, ...]

    @property
    def unlisted(self) -> tuple[Difference, ...]:
        return tuple(each for each in self.differences if each.kept is None)

    @property
    def passed(self) -> bool:
        """Return whether every difference is listed, every row is needed, and nothing was left out."""
        return not (self.unlisted or self.absent or self.stale)


def audit(folder: Path) -> Audit:
    """Compare the container files of ``folder`` with our points; ``refused.json`` lists what Bridge refused, with reasons."""
    kept, points = read_kept(), {point.file: point for point in bridge_points()}
    refusals = folder / "refused.json"
    refused = json.loads(refusals.read_text()) if refusals.is_file() else {}
    found: list[Difference] = []
    num_fields = 0
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.yaml"))}
    for name, path in files.items():
        point = points.get(name)
        if point is None:
            continue
        ours, theirs = specs(point, read_container(path, name))
        num_fields += len(effective_values(ours))
        rows = [(leaf, str(here), str(there)) for leaf, (here, there) in other_effects(ours, theirs).items()]
        if name in refused and not point.point.key.inconsistent:
            rows.append(("inconsistent", "runs", refused[name]))
        for row in rows:
            listed = next((each for each in kept if each.covers(row[0], point.name)), None)
            found.append(Difference(point.name, *row, listed))
    used = {each.kept for each in found}
    return Audit(
        num_points=len(points.keys() & files.keys()),
        num_fields=num_fields,
        differences=tuple(found),
        absent=tuple(point.name for name, point in points.items() if name not in files),
        without_point=tuple(name for name in files if name not in points),
        stale=tuple(row for row in kept if row not in used),
    )


def specs(point: BridgePoint, container: Container) -> tuple[ExperimentSpec, ExperimentSpec]:
    """Return our point, and the same experiment with every value of the container."""
    identity = {path: setting for path, setting in point.point.layer.items() if path in _IDENTITY}
    layer = settings_in(container, rows_of("bridge"))
    container.problems.raise_if_any()
    theirs = build_spec(merge(identity, layer), container.label)
    return build_spec(point.point.layer, point.point.place), theirs
