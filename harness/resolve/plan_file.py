"""Reads a file with a plan of recompute by layer, as `plan --optimal --plan_file` writes it."""

from pathlib import Path

from pydantic import Field, ValidationError

from harness.errors import BadRequestError
from harness.experiment.recompute_plan import LayerGroup, PlannedRecompute
from harness.records.reading import FileModel
from harness.records.strict_yaml import read_yaml
from harness.units import grouped

_MOST = 4096  # more stages or chunks than a job has


class _Row(FileModel, LayerGroup):
    """Layers in a row of one chunk."""

    stage: int = Field(ge=0, lt=_MOST, description="count stages from 0")
    chunk: int = Field(ge=0, lt=_MOST, description="count chunks from 0")


class _PlanFile(FileModel):
    """A whole file."""

    recompute_plan: tuple[_Row, ...] = Field(
        min_length=1, description="as in [{stage: 0, chunk: 0, layers: 2, setting: full}], one row for layers in a row"
    )


def is_plan_file(text: str) -> bool:
    """Return whether a setting names a file."""
    return text.endswith((".yaml", ".yml"))


def read_plan(path: Path) -> PlannedRecompute:
    """Return the plan of a file. BadRequestError with every problem of its rows."""
    file = read_yaml(path, str(path))
    found = file.read(_PlanFile)
    file.problems.raise_if_any()
    assert found is not None  # a file without a plan has problems
    rows = found.recompute_plan
    groups = grouped(((row.stage, row.chunk), LayerGroup(layers=row.layers, setting=row.setting)) for row in rows)
    num_stages, num_chunks = (max(place[at] for place in groups) + 1 for at in (0, 1))
    stages = (
        tuple(tuple(groups.get((stage, chunk), ())) for chunk in range(num_chunks)) for stage in range(num_stages)
    )
    try:
        return PlannedRecompute(stages=tuple(stages))
    except ValidationError as error:
        raise BadRequestError(f"{path}: {error.errors()[0]['msg']}", remedy="write their row first") from error
