"""Compares what a recompute setting requests with its effect in this model, and with what CUDA graphs capture."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.frozen import Frozen
from harness.experiment.layout import chunks
from harness.experiment.layout_text import LayoutError
from harness.experiment.model import LayerKind
from harness.experiment.modules import MODULES, Effect, Layers
from harness.experiment.recompute import FullRecompute, NoRecompute, SelectiveRecompute, policy_of_layer
from harness.experiment.recompute_plan import FULL, PlannedRecompute
from harness.experiment.software import ASSUMED_MEGATRON_CORE, Software
from harness.units import parse_version


def captures_iteration(graph: CudaGraphSpec) -> bool:
    """Return whether one graph holds forward and backward of a whole step, under either of its two spellings."""
    return graph.impl == "full_iteration" or (graph.impl == "local" and "full_iteration" in graph.scope)


def is_local(graph: CudaGraphSpec) -> bool:
    """Return whether the request uses megatron-core's own per-layer graphs."""
    return graph.impl == "local" and not captures_iteration(graph)


def captures(graph: CudaGraphSpec, module: str) -> bool:
    """Return whether a recompute module of a GPT layer is inside a per-layer graph."""
    is_whole = not graph.scope or (graph.impl == "local" and "attn" in graph.scope)
    if is_whole and graph.impl != "none" and not captures_iteration(graph):
        return True
    if graph.impl != "transformer_engine":
        return False  # local scopes without `attn` capture nothing on GPT models
    return module in MODULES and not set(MODULES[module].graph_scopes).isdisjoint(graph.scope)


def captured_checkpoints(graph: CudaGraphSpec, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ``modules`` that run through a plain checkpoint inside a per-layer graph."""
    return tuple(m for m in modules if m in MODULES and not MODULES[m].discards_output and captures(graph, m))


Implementation = Literal["transformer_engine", "local"]

NO_SOFTWARE = Software()


class EffectiveRecompute(Frozen):
    """The effect of recompute: active modules with their layer counts, and inert modules with the reason.

    ``num_layers`` and ``modules`` count the transformer layers of the whole job, those inside MTP layers included;
    ``full_layers`` decoder layers only. ``is_counted`` False: only the built model will show the effect.
    """

    recompute: str
    modules: dict[str, int] = Field(default_factory=dict)
    full_layers: int = 0
    num_layers: int
    inert_modules: dict[str, str] = Field(default_factory=dict)
    implementation: str
    is_counted: bool = True

    @property
    def does_nothing(self) -> bool:
        return self.is_counted and self.recompute != "none" and not self.modules and not self.full_layers


def settled_implementation(spec: ExperimentSpec) -> Implementation:
    """Return ``kernels.transformer_impl``; ``auto`` means local on a processor, transformer_engine on a GPU."""
    asked = spec.kernels.transformer_impl
    if asked != "auto":
        return asked
    return "local" if spec.gpu_type.is_cpu else "transformer_engine"


def effective_recompute(
    spec: ExperimentSpec, implementation: Implementation, software: Software = NO_SOFTWARE
) -> EffectiveRecompute:
    """Count the layers of the whole job on which each module acts. LayoutError for full recompute of an illegal layout.

    A ``software`` without megatron-core is the release that mbr-perf is tested with.
    """
    if not spec.is_described:
        text, number = spec.recompute.text, spec.model.num_layers
        return EffectiveRecompute(recompute=text, num_layers=number, implementation=implementation, is_counted=False)
    version = parse_version(software.megatron_core or ASSUMED_MEGATRON_CORE)
    layers, found = Layers(spec, implementation, version), dict[str, Any]()
    if isinstance(spec.recompute, SelectiveRecompute):
        found = _selective(layers, spec.recompute.modules)
    elif isinstance(spec.recompute, FullRecompute):
        found = _full(spec, spec.recompute)
    elif isinstance(spec.recompute, PlannedRecompute):
        found = _planned(layers, spec.recompute, software)
    return EffectiveRecompute(
        recompute=spec.recompute.text, num_layers=len(layers.kinds), implementation=implementation, **found
    )


def effective_if_cut(spec: ExperimentSpec, software: Software = NO_SOFTWARE) -> EffectiveRecompute | None:
    """Count on the settled layers, as :func:`effective_recompute`; None for a model that cannot be cut as asked."""
    try:
        return effective_recompute(spec, settled_implementation(spec), software)
    except LayoutError:
        return None


def computation(spec: ExperimentSpec, software: Software = NO_SOFTWARE) -> object:
    """The key by which recompute settings of one request are equal: modules, or checkpointed units of every chunk."""
    effect = effective_recompute(spec, settled_implementation(spec), software)
    policy = spec.recompute
    if isinstance(policy, PlannedRecompute):
        return policy.stages
    if not isinstance(policy, FullRecompute) or effect.does_nothing:
        return tuple(sorted(effect.modules.items()))
    units = tuple(
        tuple(_units(policy, len(chunk.layers)) for chunk in stage) for stage in chunks(spec.model, spec.parallelism)
    )
    mtp_is_recomputed = bool(spec.model.mtp_num_layers) and policy.method == "uniform"
    return units, policy.distribute_saved_activations, mtp_is_recomputed


def _units(policy: FullRecompute, num_layers: int) -> tuple[int, ...]:
    if policy.method == "block":
        return (1,) * min(policy.num_layers, num_layers)
    whole, rest = divmod(num_layers, policy.num_layers)
    return (policy.num_layers,) * whole + ((rest,) if rest else ())


def _full(spec: ExperimentSpec, policy: FullRecompute) -> dict[str, Any]:
    every = (chunk for stage in chunks(spec.model, spec.parallelism) for chunk in stage)
    return {"full_layers": sum(sum(_units(policy, len(chunk.layers))) for chunk in every)}


def planned_layers(spec: ExperimentSpec, plan: PlannedRecompute) -> Iterator[tuple[LayerKind, str]]:
    """Yield kind and setting of every layer; MTP layers are of the kind of the last decoder layer. LayoutError."""
    kinds = spec.model.layer_kinds
    for pp_rank, stage in enumerate(chunks(spec.model, spec.parallelism)):
        for vp_stage, chunk in enumerate(stage):
            of_chunk = [kinds[i] for i in chunk.layers] + [kinds[-1]] * chunk.mtp_layers
            yield from zip(of_chunk, plan.settings(pp_rank, vp_stage), strict=True)


def _planned(layers: Layers, plan: PlannedRecompute, software: Software) -> dict[str, Any]:
    """Count layer by layer; LayoutError for a plan of another layout."""
    if reason := layout_of_plan_problem(layers.spec, plan):
        raise LayoutError("R24", reason)
    each = Counter(planned_layers(layers.spec, plan))
    modules, inert = Counter[str](), dict[str, str]()
    for (kind, setting), count in each.items():
        policy = NoRecompute() if setting == FULL else policy_of_layer(setting)
        one = layers.spec.model.of_kind(kind, 1).model_copy(update={"mtp_num_layers": None})
        of_layer = layers.spec.model_copy(update={"model": one, "recompute": policy})
        found = effective_recompute(of_layer, layers.implementation, software)
        modules.update(dict.fromkeys(found.modules, count))
        inert |= found.inert_modules
    return {
        "modules": dict(sorted(modules.items())),
        "full_layers": sum(count for (_, setting), count in each.items() if setting == FULL),
        "inert_modules": {name: why for name, why in inert.items() if name not in modules},
    }


def layout_of_plan_problem(spec: ExperimentSpec, plan: PlannedRecompute) -> str:
    """Return how the layout of ``spec`` differs from the one that the plan was made for; empty if it does not."""
    sizes = [
        [len(chunk.layers) + chunk.mtp_layers for chunk in stage] for stage in chunks(spec.model, spec.parallelism)
    ]
    planned = [[sum(group.layers for group in chunk) for chunk in stage] for stage in plan.stages]
    if (len(sizes), len(sizes[0])) != (len(planned), len(planned[0])):
        return (
            f"the plan is for PP {len(planned)}, VP {len(planned[0])}; the job has PP {len(sizes)}, VP {len(sizes[0])}"
        )
    for stage, (have, want) in enumerate(zip(sizes, planned, strict=True)):
        if have != want:
            return f"stage {stage} has chunks of {have} layers, the plan is for {want}"
    return ""


def _selective(layers: Layers, modules: tuple[str, ...]) -> dict[str, Any]:
    effects = {module: _effect(layers, module) for module in modules}
    active = {module: effect for module, effect in effects.items() if isinstance(effect, int)}
    inert = {module: effect for module, effect in effects.items() if isinstance(effect, str)}
    return {"modules": active, "inert_modules": inert}


def _effect(layers: Layers, module: str) -> Effect:
    row = MODULES.get(module)
    if row is None or layers.version < parse_version(row.since_mcore):
        return "this megatron-core has no such module"
    effect = row.effect(layers)
    return effect if isinstance(effect, str) else _switched_off(layers, module) or effect


def _switched_off(layers: Layers, module: str) -> str | None:
    spec, version = layers.spec, layers.version
    graph = spec.cuda_graph
    if module == "moe" and (graph.impl == "local" or (captures_iteration(graph) and version < parse_version("0.18"))):
        return "MoELayer switches it off under local CUDA graphs"
    if module == "moe" and spec.kernels.overlap_moe_expert_parallel_comm:
        return "the expert-parallel overlap schedule bypasses MoELayer.forward"
    if MODULES[module].discards_output and is_local(graph) and version < parse_version("0.17"):
        return "megatron-core 0.16 leaves it off once local CUDA graphs are captured"
    quantized = spec.precision.peak in ("fp8", "fp4") and module != "core_attn"
    if captured_checkpoints(graph, (module,)) and not version < parse_version("0.18") and not quantized:
        return "megatron-core runs no checkpoint while a CUDA graph is captured"
    return None
