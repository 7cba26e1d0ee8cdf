"""Settings as a flat layer of leaves that remember their source, and the table of all leaves there are."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Union, get_args, get_origin

from pydantic.fields import FieldInfo

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.gpu import Frozen
from harness.experiment.recompute import FullRecompute, NoRecompute, SelectiveRecompute
from harness.recipes.strict_yaml import PlainValue

Value = PlainValue | NoRecompute | SelectiveRecompute | FullRecompute


@dataclass(frozen=True)
class Setting:
    """One leaf: its value, who said so (``recipes/llama/llama3_8b.yaml:23`` or ``--flag``), its path there, a note."""

    value: Value
    source: str
    where: str = ""
    note: str = ""

    @property
    def from_command_line(self) -> bool:
        """Whether an option set it."""
        return self.source.startswith("-")


Layer = Mapping[str, Setting]


def merge(*layers: Layer) -> dict[str, Setting]:
    """Later layers win, leaf by leaf; a leaf that a layer does not have says nothing.

    ``recompute`` is one leaf, so a policy is always replaced whole.
    """
    merged: dict[str, Setting] = {}
    for layer in layers:
        merged.update(layer)
    return merged


def _section_of(annotation: object) -> type[Frozen] | None:
    """The model class of a nested section (``MoeModel | None`` gives MoeModel), None for a leaf."""
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        members = [a for a in get_args(annotation) if a is not type(None)]
        if len(members) == 1:
            return _section_of(members[0])
    return None


def _walk(model: type[Frozen], prefix: str) -> Iterator[tuple[str, FieldInfo, type[Frozen] | None]]:
    for name, info in model.model_fields.items():
        section = _section_of(info.annotation)
        yield prefix + name, info, section
        if section is not None:
            yield from _walk(section, f"{prefix}{name}.")


_ALL = tuple(_walk(ExperimentSpec, ""))

SECTION_MODELS: dict[str, type[Frozen]] = {path: section for path, _, section in _ALL if section is not None}
"""Sections by path (``model``, ``model.moe``, ``parallelism``, ...)."""

LEAVES: dict[str, FieldInfo] = {path: info for path, info, section in _ALL if section is None}
"""Every leaf of an ExperimentSpec by path; ``env`` stands for all of ``env.NAME``."""

IDENTITY = tuple(path for path in LEAVES if "." not in path and path not in ("recompute", "env"))
"""Leaves that the choice of the operating point sets, not a section."""

TOP_SECTIONS = (*(path for path in SECTION_MODELS if "." not in path), "recompute", "env")
"""What a recipe file may hold at ``defaults``, in a profile and at a point."""


def children(section: str) -> tuple[str, ...]:
    """Names allowed right under a section."""
    return tuple(SECTION_MODELS[section].model_fields)


def settable_paths() -> tuple[str, ...]:
    """Every path that ``--set`` accepts, without the open-ended ``env.NAME``."""
    return tuple(path for path in LEAVES if path not in IDENTITY and path != "env")
