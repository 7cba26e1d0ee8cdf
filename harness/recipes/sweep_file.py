"""A sweep file: what to run, what to vary and how often; read strictly, every fault at its line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from harness.errors import BadRequestError, Problems
from harness.experiment.model import Count
from harness.recipes.file_request import SHORT_NAMES, FileWithRequest, Options, as_texts, require_axis
from harness.recipes.find import SWEEPS, NamedFiles
from harness.recipes.reading import Document, Keys, RefusedError
from harness.recipes.recompute import policy_from_text

AUTO = "auto"
_FILES = NamedFiles(SWEEPS, "sweep file", "--file")


def _axes(value: object) -> object:
    """The values of every axis as text. RefusedError with every fault at its axis."""
    if not isinstance(value, Mapping):
        return value
    if not value:
        raise RefusedError.at((), "nothing to vary", "e.g. recompute: [none, core_attn]")
    found: list[tuple[Keys, BadRequestError]] = []
    axes = {name: as_texts(values) for name, values in value.items()}
    for name, texts in axes.items():
        problems = Problems()
        with problems.collecting():
            require_axis(name)
        if (twice := SHORT_NAMES.get(name)) in axes:
            problems.add(f"says the same as {twice}", "keep one of them")
        if not texts:
            problems.add("must be a list of values", f"e.g. {name}: [..., ...]")
        for text in sorted({text for text in texts if texts.count(text) > 1}):
            problems.add(f"{text!r} is given twice", "keep one of them")
        for text in texts if name == "recompute" and texts != (AUTO,) else ():
            with problems.collecting():
                policy_from_text(text)
        found += [((name,), problem) for problem in problems.found]
    if found:
        raise RefusedError(found)
    return axes


class SweepFile(FileWithRequest):
    """A sweep as a file asks for it; the command line wins over it. ``over`` has its values as text, in the file's order."""

    title: str = Field(description="what the comparison is about")
    source: str = Field(default="", description="where it is known from")
    request: Options = Field(
        description="long names of `mbr-perf run`'s options and their values; `model_recipe_name` is needed"
    )
    over: Annotated[dict[str, tuple[str, ...]], BeforeValidator(_axes)] = Field(
        description="the values of every axis; `recompute: auto` stands for every setting that differs in effect"
    )
    grid: bool = Field(
        default=False, description="`true`: every combination; else one change at a time from the control"
    )
    repeats: Count = Field(
        default=1, description="runs of each cell, interleaved; three or more give intervals of confidence"
    )
    control: str | None = Field(
        default=None,
        description="`AXIS=VALUE ...` of the cell that the others are compared with; else the request itself, "
        "without recompute where it is varied",
    )


def read_sweep_file(name_or_path: str, directory: Path | None = None) -> SweepFile:
    """The sweep file of that name in ``sweeps/`` of the recipe directory, or at that path.

    A path has a separator or ends in .yaml or .yml. BadRequestError with every problem, each at its ``file:line``.
    """
    file = Document.open(*_FILES.find(name_or_path, directory))
    sweep = file.read(SweepFile)
    if "model_recipe_name" not in (sweep.request.said if sweep else {"model_recipe_name"}):
        file.refuse(("request", "model_recipe_name"), "missing", "name a recipe")
    file.problems.raise_if_any()
    assert sweep is not None  # a file without a sweep has problems
    return sweep


def sweep_files(directory: Path | None = None) -> tuple[Path, ...]:
    """All sweep files of the recipe directory, by name."""
    return _FILES.all(directory)
