"""Defines the situation that a rule judges, the rule, and its finding."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from packaging.version import Version

from harness.experiment.effective import (
    EffectiveRecompute,
    Implementation,
    captured_checkpoints,
    captures_iteration,
    effective_recompute,
    is_local,
    layout_of_plan_problem,
)
from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.experiment.gpu import GPUS, GpuType
from harness.experiment.layout import chunks, layout_problem, num_virtual_stages
from harness.experiment.layout_text import LayoutError
from harness.experiment.model import MoeModel
from harness.experiment.modules import MODULES
from harness.experiment.recompute import FullRecompute, SelectiveRecompute
from harness.experiment.recompute_plan import PlannedRecompute
from harness.experiment.software import ASSUMED_MEGATRON_CORE, Software
from harness.units import parse_version

# Where rows were found; files of megatron-core 0.16.1 unless a row says otherwise.
CONFIG = "transformer_config.py"
ARGUMENTS = "megatron/training/arguments.py at core_v0.16.1"
ISSUES = "https://github.com/NVIDIA/Megatron-LM/issues"
PULLS = "https://github.com/NVIDIA/Megatron-LM/pull"


Launcher = Literal["mbr-perf", "megatron-lm", "bridge"]


@dataclass(frozen=True)
class Situation:
    """The request to judge. ``rank_env``: of the ranks, which ``launcher`` starts; None: only the request's."""

    spec: ExperimentSpec
    software: Software
    implementation: Implementation
    rank_env: Mapping[str, str] | None = field(default=None)
    launcher: Launcher = "mbr-perf"

    @property
    def graph(self) -> CudaGraphSpec:
        return self.spec.cuda_graph

    @property
    def moe(self) -> MoeModel | None:
        return self.spec.model.moe

    @property
    def dispatcher(self) -> str | None:
        return self.spec.kernels.moe_token_dispatcher_type if self.moe else None

    @property
    def overlaps_experts(self) -> bool:
        return self.moe is not None and self.spec.kernels.overlap_moe_expert_parallel_comm

    @cached_property
    def tp(self) -> int:
        return self.spec.parallelism.tensor_model_parallel_size

    @cached_property
    def pp(self) -> int:
        return self.spec.parallelism.pipeline_model_parallel_size

    @cached_property
    def cp(self) -> int:
        return self.spec.parallelism.context_parallel_size

    @cached_property
    def ep(self) -> int:
        return self.spec.parallelism.expert_model_parallel_size

    @cached_property
    def etp(self) -> int:
        return self.spec.parallelism.expert_tensor_size

    @cached_property
    def vp(self) -> int:
        return num_virtual_stages(self.spec.parallelism)

    @cached_property
    def num_microbatches(self) -> int | None:
        """Return the micro-batches of a step; None if GPUs or samples do not divide."""
        spec, samples = self.spec, self.spec.batch.micro_batch_size * self.spec.data_parallel_size
        if not samples or spec.num_gpus % spec.parallelism.model_parallel_size:
            return None
        each, rest = divmod(spec.batch.global_batch_size, samples)
        return None if rest else each

    # The machine and its software.
    @cached_property
    def gpu(self) -> GpuType:
        return GPUS.get(self.software.gpu or "", self.spec.gpu_type)

    @cached_property
    def mcore_name(self) -> str:
        return self.software.megatron_core or ASSUMED_MEGATRON_CORE

    @cached_property
    def mcore(self) -> Version:
        return parse_version(self.mcore_name)

    def mcore_before(self, version: str) -> bool:
        """Return whether megatron-core is older than ``version``."""
        return self.mcore < parse_version(version)

    @cached_property
    def te_is_missing(self) -> bool:
        """Return whether transformer-engine is known to be missing. Without megatron-core, that is unknown."""
        return self.software.transformer_engine is None and self.software.megatron_core is not None

    def te_before(self, version: str) -> bool:
        """Return whether transformer-engine is known and older than ``version``."""
        te = self.software.transformer_engine
        return te is not None and parse_version(te) < parse_version(version)

    @cached_property
    def uses_te(self) -> bool:
        return self.implementation == "transformer_engine"

    @cached_property
    def env(self) -> Mapping[str, str]:
        return {**self.spec.env, **(self.rank_env or {})}

    # Recompute.
    @cached_property
    def modules(self) -> tuple[str, ...]:
        policy = self.spec.recompute
        return policy.modules if isinstance(policy, SelectiveRecompute) else ()

    @cached_property
    def full(self) -> FullRecompute | None:
        return self.spec.recompute if isinstance(self.spec.recompute, FullRecompute) else None

    @property
    def plan(self) -> PlannedRecompute | None:
        return self.spec.recompute if isinstance(self.spec.recompute, PlannedRecompute) else None

    @cached_property
    def plan_problem(self) -> str:
        """Return how the layout differs from that of the plan; empty without a plan, or if it does not."""
        return layout_of_plan_problem(self.spec, self.plan) if self.plan and not self.layout_error else ""

    @cached_property
    def layout_error(self) -> LayoutError | None:
        return layout_problem(self.spec.model, self.spec.parallelism)

    @cached_property
    def chunk_sizes(self) -> tuple[int, ...]:
        """Return the decoder layers of every chunk that has any; empty if the model cannot be cut."""
        if self.layout_error:
            return ()
        stages = chunks(self.spec.model, self.spec.parallelism)
        return tuple(len(chunk.layers) for stage in stages for chunk in stage if chunk.layers)

    @cached_property
    def effective(self) -> EffectiveRecompute | None:
        """Return the effect of recompute; None for full recompute of a model that cannot be cut."""
        if (self.full or self.plan) and (self.layout_error or self.plan_problem):
            return None
        return effective_recompute(self.spec, self.implementation, self.software)

    @cached_property
    def discarding(self) -> tuple[str, ...]:
        return tuple(module for module in self.modules if module in MODULES and MODULES[module].discards_output)

    # Precision.

    @cached_property
    def quantized(self) -> bool:
        return self.spec.precision.peak in ("fp8", "fp4")

    @cached_property
    def fp8_recipe(self) -> object:
        return self.spec.precision.transformer_config.get("fp8_recipe")

    # CUDA graphs.
    @cached_property
    def graphs_iteration(self) -> bool:
        return captures_iteration(self.graph)

    @cached_property
    def graphs_locally(self) -> bool:
        return is_local(self.graph)

    @cached_property
    def captured_checkpoints(self) -> tuple[str, ...]:
        return captured_checkpoints(self.graph, self.modules)

    @cached_property
    def is_dropless(self) -> bool:
        """Return whether the model is MoE without drop-and-pad: only the device knows the token counts per expert."""
        padded = (
            self.spec.kernels.moe_expert_capacity_factor is not None
            and self.spec.kernels.moe_pad_expert_input_to_capacity
        )
        return self.moe is not None and not padded


Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Finding(Frozen):
    """One violated rule, with the values of the request.

    ``mcore_text`` is what megatron-core or its launcher would say.
    error: the run would be refused, crash, hang or train something else. warning: it runs, but a requested setting has
    no effect or is wasteful. note: worth knowing. ``overridden``: an error that the user forced.
    """

    id: str
    severity: Severity
    message: str
    fix: str
    mcore_text: str | None = None
    overridden: bool = False

    @property
    def blocks(self) -> bool:
        return self.severity == "error" and not self.overridden


Values = dict[str, object]
Predicate = Callable[[Situation], bool | Values | None]

# How a row is known: seen in a run on CPU, read in the source, reported in an issue, or a limit of this harness.
Evidence = Literal["run", "source", "issue", "harness"]


@dataclass(frozen=True)
class Rule:
    """``when`` returns False or None, or True, or the values for the templates; ``{s}`` is always the Situation.

    ``since`` and ``until`` (exclusive) are megatron-core versions. ``mcore_text`` is a template too; None where
    megatron-core has no text or an empty one. ``source`` is a file of megatron-core 0.16.1 unless it says otherwise.
    """

    id: str
    severity: Severity
    when: Predicate
    message: str
    fix: str
    source: str
    evidence: Evidence
    mcore_text: str | None = None
    since: str | None = None
    until: str | None = None

    def holds_in(self, version: Version) -> bool:
        """Return whether the row covers this megatron-core."""
        if self.since and version < parse_version(self.since):
            return False
        return not self.until or version < parse_version(self.until)

    def judge(self, situation: Situation) -> Finding | None:
        """Return the finding, or None if the request keeps the rule."""
        if not self.holds_in(situation.mcore):
            return None
        verdict = self.when(situation)
        if verdict is None or verdict is False:
            return None
        values: Values = verdict if isinstance(verdict, dict) else {}
        return Finding(
            id=self.id,
            severity=self.severity,
            message=self.message.format(s=situation, **values),
            fix=self.fix.format(s=situation, **values),
            mcore_text=self.mcore_text.format(s=situation, **values) if self.mcore_text else None,
        )


def where(asked: Callable[[Situation], bool], condition: Predicate) -> Predicate:
    """Restrict ``condition`` to situations for which ``asked`` holds."""
    return lambda s: asked(s) and condition(s)


def joined(**words: Iterable[str]) -> Values | None:
    """Join the words of all names by commas; None if a name has none."""
    texts: Values = {name: ", ".join(each) for name, each in words.items()}
    return texts if all(texts.values()) else None


def has_shared_experts(s: Situation) -> bool:
    """Return whether MoE layers hold experts that every token passes."""
    return s.moe is not None and s.moe.moe_shared_expert_intermediate_size is not None
