"""Defines a recipe and the request of a user."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from harness.experiment.experiment import NAME_PATTERN, Task
from harness.experiment.gpu import GPUS, PRECISIONS, Frozen
from harness.experiment.model import Gpus
from harness.recipes.reading import one_of
from harness.recipes.settings import Layer
from harness.units import counted

TASKS: tuple[str, ...] = get_args(Task)


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
        """Return the names of the shared settings, in the order in which they apply."""
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

    With ``bridge_recipe``, ``path`` is a function of Megatron-Bridge, which has to write its file first.
    """

    kind: SourceKind
    path: str

    @property
    def words(self) -> tuple[str, str]:
        """Return the option and its value, as typed."""
        return f"--{self.kind}", self.path

    @property
    def label(self) -> str:
        """Return the name for messages and sources, which never starts like an option."""
        if self.path == STDIN:
            return "standard input"
        return f"./{self.path}" if self.path.startswith("-") else self.path

    @property
    def name(self) -> str:
        """Return a name for folders and goldens: that of the file, or of its folder if all jobs name the file alike.

        >>> ForeignSource("hf", "models/Llama-3.1-8B/config.json").name
        'llama-3.1-8b'
        """
        path = Path(self.path.rpartition(":")[2] if self.kind == "bridge_recipe" else self.path).absolute()
        stem = path.name if path.is_dir() else path.stem
        if stem.lower() in _TELLS_NOTHING:
            stem = path.parent.name
        name = re.sub(r"[^a-z0-9_.-]+", "_", stem.lower()).strip("_.-")[:64]
        return self.kind if self.path == STDIN or not name else name


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options as given. None and () mean that the option is absent: an absent option sets and clears nothing.

    ``source`` describes the job in place of ``model_recipe_name``. The caller settles ``gpu`` (the machine's GPU type, or
    ``cpu``). ``point_gpu`` borrows the operating point of another GPU type. ``memory_limit`` is in GiB. ``env`` holds
    ``KEY=VALUE``, ``set_values`` holds ``section.field=value``.
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
    enable_nsys: bool | None = None
    pytorch_profiler: bool | None = None
    profiling_ranks: str | None = None
    profiling_start_step: int | None = None
    profiling_stop_step: int | None = None
    nsys_trace: str | None = None
    nsys_extra_args: str | None = None
    profiling_gpu_metrics: bool | None = None
    export_nsys_sqlite: bool | None = None
    lock_gpu_freq: int | None = None
    peak_mem_clk: int | None = None
    engine: str | None = None
    forward_step: str | None = None
    env: tuple[str, ...] = ()
    set_values: tuple[str, ...] = ()
    recipes_dir: Path | None = None

    @property
    def trains_by_bridge(self) -> bool:
        """Return whether Megatron-Bridge's own loop trains, not mbr-perf's worker."""
        return self.engine == "bridge"

    @property
    def job_words(self) -> tuple[str, str]:
        """Return the option that names the recipe or the file of the job, and its value; an empty value without either."""
        return self.source.words if self.source else ("-mr", self.model_recipe_name)

    @property
    def job_name(self) -> str:
        """Return the recipe's or the file's name, for folders; empty without either."""
        return self.source.name if self.source else Path(self.model_recipe_name).stem
