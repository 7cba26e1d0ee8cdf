"""Defines settings with their sources, the spec that complete settings make, a recipe, and the request of a user."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from harness.errors import Problems
from harness.experiment.experiment import NAME_PATTERN, BridgeEngine, ExperimentSpec, Task
from harness.experiment.frozen import Frozen
from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.model import Gpus
from harness.experiment.recompute import UniformRecompute
from harness.experiment.recompute_plan import PlannedRecompute
from harness.experiment.user_buffers import UserBuffers
from harness.records.faults import TYPES, Fault, faults, models_in
from harness.records.reading import PlainValue, path_text
from harness.records.refusing import one_of
from harness.units import counted

TASKS: tuple[str, ...] = get_args(Task)


Value = PlainValue | UniformRecompute | PlannedRecompute | BridgeEngine


@dataclass(frozen=True)
class Setting:
    """One leaf: its value, its source (``recipes/llama/llama3_8b.yaml:23`` or ``--flag``), its path there, a note.

    ``option``: of a value that no source states, the option that changes it; ``note`` then is the value in words.
    """

    value: Value
    source: str
    where: str = ""
    note: str = ""
    option: str = ""

    @property
    def from_command_line(self) -> bool:
        return self.source.startswith("-")


Layer = Mapping[str, Setting]

ASSUMED, NO_EFFECT, LAID_OUT = "assumed", "no effect", "pipeline layout"
"""How a note begins that names values which no source states, a value that changes nothing, or the layout in use."""
UNPREDICTED = "not all is predicted"
"""What a note says before it names settings of a file that make a step longer or larger than predicted."""


def merge(*layers: Layer) -> dict[str, Setting]:
    """Merge layers, of which later ones win, leaf by leaf; a leaf that a layer lacks changes nothing."""
    merged: dict[str, Setting] = {}
    for layer in layers:
        merged.update(layer)
    return merged


def _walk(model: type[Frozen], prefix: str) -> Iterator[tuple[str, FieldInfo, type[Frozen] | None]]:
    """Yield every field by path, and its model if it is a section. User buffers and the engine are leaves."""
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
    if tree.get("task") == "peft":
        tree.setdefault("peft", {})
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
    path = path_text(fault.keys)
    leaf = next((known for known in layer if path == known or path.startswith((f"{known}.", f"{known}["))), None)
    if leaf is None and fault.is_missing:
        return f"{place}.{path}: missing", f"write {path} in the recipe, or give it as an option"
    if leaf is None:  # values of a section do not fit together
        of_section = [setting.source for known, setting in layer.items() if known.startswith(f"{path}.")]
        options = sorted({source for source in of_section if source.startswith("-")})
        given = f" (given: {', '.join(options)})" * bool(options)
        return f"{place}.{path}: {fault.message}{given}", "change one of the values it names"
    setting = layer[leaf]
    source = f"{setting.source}: {setting.where}" if setting.where else setting.source
    is_typed = fault.remedy == TYPES and not setting.where and not setting.from_command_line
    remedy = (
        f"correct it there{f', or set {leaf} with --set' * (leaf in settable_paths())}"  # in another program's file
    )
    return f"{source}{path.removeprefix(leaf)}: {fault.message}", remedy if is_typed else fault.remedy


def sources_of(spec: ExperimentSpec, layer: Layer) -> dict[str, str]:
    """Return the source of each leaf: ``default``, ``file:line`` or the option."""
    sources: dict[str, str] = {}
    for path in LEAVES:
        section = path.rpartition(".")[0]
        if path == "env":
            sources.update({f"env.{name}": layer[f"env.{name}"].source for name in spec.env})
        elif section and at_path(spec, section) is None:
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


class RecipeHeader(Frozen):
    """Name and source of a recipe. ``name`` is the file's stem, ``family`` its folder."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, description="the file's stem; lower-case letters, digits, _ . -")]
    family: Annotated[str, Field(pattern=NAME_PATTERN, description="the folder")]
    title: Annotated[str, Field(min_length=1, description="for people")]
    sources: tuple[str, ...] = Field(default=(), description="where the model's figures come from")


class PointKey(Frozen):
    """The keys that select an operating point, and notes about it."""

    task: Task = Field(description="what is trained; a list gives one point for each")
    gpu: Annotated[str, one_of(GPUS)] = Field(description="GPU type")
    compute_dtype: Annotated[str, one_of(PRECISIONS)] = Field(description="precision")
    num_gpus: Gpus = Field(description="GPUs in all")
    gpus_per_node: Gpus | None = Field(default=None, description="GPUs of one machine; null: as the GPU type has")
    variant: Annotated[str, Field(pattern=NAME_PATTERN)] | None = Field(
        default=None, description="name of a further point for the same GPUs, chosen by --variant"
    )
    profile: str | tuple[str, ...] | None = Field(
        default=None, description="shared settings to start from; in a list, later profiles override earlier ones"
    )
    source: Annotated[str, Field(min_length=1, description="where the point's values come from")]
    note: str | None = Field(default=None, description="what a user of the point should know")
    inconsistent: tuple[str, ...] = Field(
        default=(), description="why the values cannot run; the point is listed, not run"
    )

    @property
    def profiles(self) -> tuple[str, ...]:
        return (self.profile,) if isinstance(self.profile, str) else self.profile or ()


@dataclass(frozen=True)
class OperatingPoint:
    """One published or chosen way to run the model; ``layer`` is complete but for defaults of the spec."""

    key: PointKey
    layer: Layer
    place: str

    @property
    def title(self) -> str:
        """Describe the point: ``pretrain h100 bf16 8 GPUs (variant large_scale)``."""
        variant = f" (variant {self.key.variant})" if self.key.variant else ""
        return f"{self.key.task} {self.key.gpu} {self.key.compute_dtype} {counted(self.key.num_gpus, 'GPU')}{variant}"


@dataclass(frozen=True)
class Recipe:
    """One recipe file. Messages call it ``label``."""

    header: RecipeHeader
    path: Path
    label: str
    points: tuple[OperatingPoint, ...]


FileKind = Literal["bridge_config", "hf", "megatron_args"]
SourceKind = Literal["bridge_config", "hf", "megatron_args", "bridge_recipe"]
STDIN = "-"
_TELLS_NOTHING = ("config", "run_config", "configcontainer")  # names that every job gives its file


@dataclass(frozen=True)
class ForeignSource:
    """A file of another program that describes a job, and the option that names it. ``path``: `-` is standard input.

    With ``bridge_recipe``, ``path`` is a function of Megatron-Bridge, which has to write its file first. ``called``:
    the name of a job whose file is named by chance, as a log is.
    """

    kind: SourceKind
    path: str
    called: str = ""

    @property
    def words(self) -> tuple[str, str]:
        return f"--{self.kind}", self.path

    @property
    def label(self) -> str:
        """Return the name for messages and sources, which never starts like an option."""
        if self.path == STDIN:
            return "standard input"
        return f"./{self.path}" if self.path.startswith("-") else self.path

    @property
    def name(self) -> str:
        """Return a name for folders and goldens: that of the file, or of its folder if all jobs name the file alike."""
        if self.called:
            return self.called
        path = Path(self.path.rpartition(":")[2] if self.kind == "bridge_recipe" else self.path).absolute()
        stem = path.name if path.is_dir() else path.stem
        if stem.lower() in _TELLS_NOTHING:
            stem = path.parent.name
        name = re.sub(r"[^a-z0-9_.-]+", "_", stem.lower()).strip("_.-")[:64]
        return self.kind if self.path == STDIN or not name else name


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options as given. None and () mean that the option is absent: an absent option sets and clears nothing.

    ``source`` describes the job in place of ``model_recipe_name``. The caller settles ``gpu`` (the machine's GPU type,
    or ``cpu``). ``point_gpu`` borrows the operating point of another GPU type. ``memory_limit`` is in GiB. ``env``
    holds ``KEY=VALUE``, ``set_values`` holds ``section.field=value``.
    """

    model_recipe_name: str
    gpu: str
    source: ForeignSource | None = None
    model_family_name: str | None = None
    point_gpu: str | None = None
    task: str | None = None
    compute_dtype: str | None = None
    num_gpus: int | None = None
    gpus_per_node: int | None = None
    variant: str | None = None
    max_steps: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    seq_length: int | None = None
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    virtual_pipeline_model_parallel_size: int | Literal["none"] | None = None
    expert_model_parallel_size: int | None = None
    expert_tensor_parallel_size: int | None = None
    recompute: str | None = None
    recompute_modules: str | None = None
    recompute_num_layers: int | None = None
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    distribute_saved_activations: bool | None = None
    activation_offload_layers: int | None = None
    cuda_graph_impl: str | None = None
    cuda_graph_scope: str | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    skip_first_percent_time: float | None = None
    eval_time_start_step: int | None = None
    eval_time_end_step: int | None = None
    seed: int | None = None
    memory_limit: float | None = None
    memory_snapshot: bool | None = None
    snapshot_on_oom: bool | None = None
    engine: str | None = None
    forward_step: str | None = None
    env: tuple[str, ...] = ()
    set_values: tuple[str, ...] = ()
    recipes_dir: Path | None = None

    @property
    def trains_by_bridge(self) -> bool:
        return self.engine == "bridge"

    @property
    def settled(self) -> frozenset[str]:
        return frozenset(text.partition("=")[0].strip() for text in self.set_values)

    @property
    def job_words(self) -> tuple[str, str]:
        """The option that names the recipe or the file of the job, and its value; an empty value without either."""
        return self.source.words if self.source else ("-mr", self.model_recipe_name)

    @property
    def job_name(self) -> str:
        return self.source.name if self.source else Path(self.model_recipe_name).stem
