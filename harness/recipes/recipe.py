"""What a recipe is: header, operating points, and the settings of each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field

from harness.recipes.settings import Layer
from harness.spec.experiment import NAME_PATTERN, Task
from harness.spec.frozen import Frozen
from harness.spec.model import Count
from harness.units import counted

TASKS: tuple[str, ...] = get_args(Task)


class RecipeHeader(Frozen):
    """What a recipe is called and where its figures come from. ``name`` is the file's stem, ``family`` its folder."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    family: Annotated[str, Field(pattern=NAME_PATTERN)]
    title: Annotated[str, Field(min_length=1)]
    sources: tuple[str, ...] = ()


class PointKey(Frozen):
    """What selects an operating point, and what is known about it.

    ``profile`` names shared settings, or several of which a later one wins; ``inconsistent`` holds reasons why the published values cannot run.
    """

    task: Task
    gpu: str
    compute_dtype: str
    num_gpus: Count
    gpus_per_node: Count | None = None
    variant: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    profile: str | tuple[str, ...] | None = None
    source: Annotated[str, Field(min_length=1)]
    note: str | None = None
    inconsistent: tuple[str, ...] = ()

    @property
    def profiles(self) -> tuple[str, ...]:
        """Names of the shared settings, in the order in which they apply."""
        return (self.profile,) if isinstance(self.profile, str) else self.profile or ()


@dataclass(frozen=True)
class OperatingPoint:
    """One published or chosen way to run the model; ``layer`` is complete but for defaults of the spec."""

    key: PointKey
    layer: Layer
    place: str

    @property
    def title(self) -> str:
        """``pretrain h100 bf16 8 GPUs (variant large_scale)``."""
        variant = f" (variant {self.key.variant})" if self.key.variant else ""
        return f"{self.key.task} {self.key.gpu} {self.key.compute_dtype} {counted(self.key.num_gpus, 'GPU')}{variant}"


@dataclass(frozen=True)
class Recipe:
    """One recipe file. ``label`` is its path as people write it."""

    header: RecipeHeader
    path: Path
    label: str
    points: tuple[OperatingPoint, ...]
