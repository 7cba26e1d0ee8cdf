"""Settings as a flat layer of leaves that remember their source, and the spec that a complete layer is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from harness.errors import Problems, nearest
from harness.experiment.experiment import BridgeEngine, ExperimentSpec
from harness.experiment.gpu import Frozen
from harness.experiment.recompute import FullRecompute, NoRecompute, SelectiveRecompute
from harness.experiment.user_buffers import NAMED, UserBuffers
from harness.recipes.reading import TYPES, Fault, faults, models_in, path_text
from harness.recipes.strict_yaml import PlainValue

Value = PlainValue | NoRecompute | SelectiveRecompute | FullRecompute | BridgeEngine


@dataclass(frozen=True)
class Setting:
    """One leaf: its value, its source (``recipes/llama/llama3_8b.yaml:23`` or ``--flag``), its path there, a note."""

    value: Value
    source: str
    where: str = ""
    note: str = ""

    @property
    def from_command_line(self) -> bool:
        """Return whether an option set it."""
        return self.source.startswith("-")


Layer = Mapping[str, Setting]


def merge(*layers: Layer) -> dict[str, Setting]:
    """Merge layers, of which later ones win, leaf by leaf; a leaf that a layer lacks changes nothing.

    ``recompute`` is one leaf, so a policy is always replaced whole.
    """
    merged: dict[str, Setting] = {}
    for layer in layers:
        merged.update(layer)
    return merged


def _walk(model: type[Frozen], prefix: str) -> Iterator[tuple[str, FieldInfo, type[Frozen] | None]]:
    """Yield every field by path, with its model if it is a section. User buffers, policies and the engine are leaves."""
    for name, info in model.model_fields.items():
        models = [each for each in models_in(info.annotation) if issubclass(each, Frozen)]
        section = models[0] if len(models) == 1 and models[0] not in (UserBuffers, BridgeEngine) else None
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
"""Keys that a recipe file may hold at ``defaults``, in a profile and at a point."""


def settable_paths() -> tuple[str, ...]:
    """Return every path that ``--set`` accepts, without the open-ended ``env.NAME``."""
    return tuple(path for path in LEAVES if path not in IDENTITY and path != "env")


def build_spec(layer: Layer, place: str) -> ExperimentSpec:
    """Build the spec of a complete layer. ``place`` (``file:line: points[2]``) opens messages about missing values.

    Raises BadRequestError with every wrong value at its own source.
    """
    tree = nested(layer)
    try:
        return ExperimentSpec.model_validate(tree)
    except ValidationError as error:
        problems = Problems()
        for fault in faults(error, ExperimentSpec, tree):
            problems.add(*_explained(fault, layer, place))
        problems.raise_if_any()
        raise


def nested(layer: Layer) -> dict[str, object]:
    """Return the values of a layer as the nested mapping that an ExperimentSpec is made from."""
    tree: dict[str, object] = {"env": {}}
    for path, setting in layer.items():
        *sections, leaf = path.split(".")
        if path.startswith("env.") and setting.value is None:
            continue
        at: dict[str, object] = tree
        for name in sections:
            nested = at.setdefault(name, {})
            assert isinstance(nested, dict)
            at = nested
        at[leaf] = setting.value
    return tree


def _explained(fault: Fault, layer: Layer, place: str) -> tuple[str, str]:
    """Return the message of a fault at the file or the option that set the value, and the remedy."""
    path = path_text(fault.keys)
    leaf = next((known for known in layer if path == known or path.startswith(f"{known}.")), None)
    if leaf is None and fault.is_missing:
        return f"{place}.{path}: missing", f"write {path} in the recipe, or give it as an option"
    if leaf is None:  # values of a section do not fit together
        options = sorted(
            {s.source for known, s in layer.items() if known.startswith(f"{path}.") and s.from_command_line}
        )
        given = f" (given: {', '.join(options)})" if options else ""
        return f"{place}.{path}: {fault.message}{given}", "change one of the values it names"
    setting, remedy = layer[leaf], fault.remedy
    if leaf == "kernels.tp_comm_overlap_cfg" and isinstance(setting.value, str):
        remedy = nearest(setting.value, NAMED, count=3)
    if remedy == TYPES and not setting.where and not setting.from_command_line:  # a file of another program
        remedy = f"correct it there{f', or set {leaf} with --set' if leaf in settable_paths() else ''}"
    source = f"{setting.source}: {setting.where}" if setting.where else setting.source
    return f"{source}{path.removeprefix(leaf)}: {fault.message}", remedy


def sources_of(spec: ExperimentSpec, layer: Layer) -> dict[str, str]:
    """Return the source of each leaf: ``default``, ``file:line`` or the option."""
    sources: dict[str, str] = {}
    for path in LEAVES:
        section = path.rpartition(".")[0]
        if path == "env":
            sources.update({f"env.{name}": layer[f"env.{name}"].source for name in spec.env})
        elif section.startswith("model.") and getattr(spec.model, section.rpartition(".")[2]) is None:
            sources[section] = "default"
        else:
            sources[path] = layer[path].source if path in layer else "default"
    return sources


def at_path(spec: ExperimentSpec, path: str) -> object:
    """Return the value of a leaf or section; None from the first section on that is None."""
    value: object = spec
    for name in path.split("."):
        value = getattr(value, name)
        if value is None:
            break
    return value
