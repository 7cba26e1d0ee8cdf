"""Which traces a prediction needs, and which whole steps can be traced."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.experiment.effective import Implementation, effective_recompute
from harness.experiment.experiment import CudaGraphSpec, DdpSpec, ExperimentSpec, KernelSpec
from harness.experiment.layout import Chunk
from harness.experiment.model import BatchSpec, ModelSpec, ParallelismSpec
from harness.experiment.recompute import FullRecompute, NoRecompute, RecomputePolicy, SelectiveRecompute
from harness.planning.compose import ChunkCost
from harness.planning.ledger import StageMemory, library_bytes, stage_memory
from harness.records.trace import ExactStage, LayerKind, TraceCase

KINDS: tuple[LayerKind, LayerKind] = ("dense", "moe")  # by the 0 or 1 of `moe_layer_pattern`


@dataclass(frozen=True)
class CaseMaker:
    """Makes trace cases of one request; equal cases of different requests have equal keys.

    Pipeline, data parallelism, optimizer and steps are composition, so a sweep over them costs no new trace. ``made``
    keeps what was made, for all recompute settings of one request.
    """

    spec: ExperimentSpec
    implementation: Implementation
    made: dict[object, TraceCase] = field(default_factory=dict, repr=False, compare=False)

    def layers(self, kind: LayerKind, policy: RecomputePolicy, num_layers: int) -> TraceCase:
        """A chunk of ``num_layers`` layers and nothing else."""
        return self._case(kind, policy, num_layers=num_layers)

    def offloaded(self, kind: LayerKind, policy: RecomputePolicy, num_layers: int) -> TraceCase:
        """The same with layers or modules in host memory between the passes, as asked."""
        return self._case(kind, policy, num_layers=num_layers, offloads=True)

    def first(self, kind: LayerKind, policy: RecomputePolicy) -> TraceCase:
        """One layer behind the embedding."""
        return self._case(kind, policy, pre=True)

    def last(self, kind: LayerKind, policy: RecomputePolicy, *, pre: bool, mtp: bool) -> TraceCase:
        """One layer before MTP layers, output layer and loss; with the embedding where one chunk has both."""
        return self._case(kind, policy, pre=pre, post=True, mtp=mtp)

    def _case(
        self,
        kind: LayerKind,
        policy: RecomputePolicy,
        *,
        num_layers: int = 1,
        pre: bool = False,
        post: bool = False,
        mtp: bool = False,
        offloads: bool = False,
    ) -> TraceCase:
        asked = kind, policy.text, num_layers, pre, post, mtp, offloads
        if asked not in self.made:
            spec = _reduced(self.spec, kind, self.implementation, mtp=mtp)
            changes: dict[str, object] = {"recompute": _in_effect(spec, policy, self.implementation)}
            if offloads:  # how many layers go decides what is composed, not what is traced
                offload = self.spec.offload
                num_offloaded = min(1, offload.cpu_offloading_num_layers)
                changes["offload"] = offload.model_copy(update={"cpu_offloading_num_layers": num_offloaded})
            spec = spec.model_copy(update=changes)
            case = TraceCase(key="", spec=spec, layer_kind=kind, num_layers=num_layers, pre=pre, post=post, mtp=mtp)
            text = f"{self.implementation} {case.model_dump_json()}"
            self.made[asked] = case.model_copy(update={"key": hashlib.sha256(text.encode()).hexdigest()[:24]})
        return self.made[asked]


def base_policies(policy: RecomputePolicy) -> tuple[RecomputePolicy, ...]:
    """What is traced for ``policy``: full recompute of any N is composed of kept and singly recomputed layers."""
    if not isinstance(policy, FullRecompute):
        return (policy,)
    return NoRecompute(), single(policy)


def single(policy: FullRecompute) -> FullRecompute:
    """Full recompute with one layer per checkpoint."""
    return FullRecompute(
        method="uniform", num_layers=1, distribute_saved_activations=policy.distribute_saved_activations
    )


def kind_of(model: ModelSpec, chunk: Chunk, layer: int) -> LayerKind:
    """Kind of the chunk's ``layer``-th layer; of the model's last one where the chunk has none."""
    pattern = model.moe_layer_pattern
    return KINDS[pattern[chunk.layers[layer]] if chunk.layers else pattern[-1]]


def _in_effect(spec: ExperimentSpec, policy: RecomputePolicy, implementation: Implementation) -> RecomputePolicy:
    """``policy`` without modules that this kind of layer lacks, so that equal computations are traced once."""
    if not isinstance(policy, SelectiveRecompute):
        return policy
    asked = spec.model_copy(update={"recompute": policy})
    active = tuple(sorted(effective_recompute(asked, implementation).modules))
    return SelectiveRecompute(modules=active) if active else NoRecompute()


def _reduced(spec: ExperimentSpec, kind: LayerKind, implementation: Implementation, *, mtp: bool) -> ExperimentSpec:
    """``spec`` without anything that one chunk of one kind of layer does not depend on.

    What the tracer cannot do is left out too; `assumptions` says so and widens the range.
    """
    model = spec.model.model_copy(
        update={
            "num_layers": 1,
            "mtp_num_layers": spec.model.mtp_num_layers if mtp else None,
            "moe": spec.model.moe and spec.model.moe.model_copy(update={"moe_layer_freq": (KINDS.index(kind),)}),
        }
    )
    p = spec.parallelism
    return ExperimentSpec(
        recipe="",
        family="",
        gpu=spec.gpu,
        num_gpus=1,
        gpus_per_node=1,
        compute_dtype=spec.compute_dtype,
        model=model,
        parallelism=ParallelismSpec(
            tensor_model_parallel_size=p.tensor_model_parallel_size,
            context_parallel_size=p.context_parallel_size,
            expert_model_parallel_size=p.expert_model_parallel_size,
            expert_tensor_parallel_size=p.expert_tensor_size,
            sequence_parallel=p.sequence_parallel,
        ),
        batch=BatchSpec(
            micro_batch_size=spec.batch.micro_batch_size,
            global_batch_size=spec.batch.micro_batch_size,
            seq_length=spec.batch.seq_length,
        ),
        ddp=DdpSpec(grad_reduce_in_fp32=spec.ddp.grad_reduce_in_fp32),
        cuda_graph=CudaGraphSpec(),
        kernels=traceable(spec.kernels, implementation),
    )


def traceable(kernels: KernelSpec, implementation: Implementation) -> KernelSpec:
    """``kernels`` without what the tracer cannot do."""
    flex = kernels.moe_token_dispatcher_type == "flex"  # noqa: S105 (a dispatcher of tokens)
    return kernels.model_copy(
        update={
            "transformer_impl": implementation,
            "overlap_moe_expert_parallel_comm": False,
            "moe_token_dispatcher_type": "alltoall" if flex else kernels.moe_token_dispatcher_type,
            "moe_flex_dispatcher_backend": None,
        }
    )


@dataclass(frozen=True)
class ExactPeak:
    """Highest moment of one stage's schedule in bytes, composed and exact; ``problem`` says why there is no exact one.

    ``optimizer_step_bytes``: the other candidate for the stage's peak, which no schedule moves.
    """

    pp_rank: int
    composed_bytes: int
    exact_bytes: int | None
    optimizer_step_bytes: int
    seconds: float | None = None
    problem: str = ""

    @property
    def error(self) -> float | None:
        """Composed over exact, less one."""
        return None if self.exact_bytes is None else self.composed_bytes / self.exact_bytes - 1


def exact_spec(spec: ExperimentSpec, implementation: Implementation) -> ExperimentSpec:
    """``spec`` as the tracer can run it: eagerly, with what chunk traces leave out left out here too."""
    return spec.model_copy(
        update={"kernels": traceable(spec.kernels, implementation), "cuda_graph": CudaGraphSpec(), "env": {}}
    )


def exact_peaks(
    spec: ExperimentSpec,
    costs: tuple[tuple[ChunkCost, ...], ...],
    traced: Mapping[int, ExactStage],
    problem: str,
    *,
    torch_adam: bool = False,
) -> tuple[ExactPeak, ...]:
    """Every stage of ``costs[pp_rank][vp_stage]``; ``problem`` for those that are not in ``traced``.

    ``torch_adam`` as in `model_states`. Model states and workspaces of libraries are the same in both: no trace of a schedule sees them.
    """
    stages = (stage_memory(spec, pp_rank, chunks, torch_adam=torch_adam) for pp_rank, chunks in enumerate(costs))
    return tuple(
        _exact_peak(spec, stage, chunks, traced.get(stage.pp_rank), problem)
        for stage, chunks in zip(stages, costs, strict=True)
    )


def _exact_peak(
    spec: ExperimentSpec, stage: StageMemory, chunks: tuple[ChunkCost, ...], traced: ExactStage | None, problem: str
) -> ExactPeak:
    step = stage.peaks["optimizer step"]
    composed = max(peak for name, peak in stage.peaks.items() if name != "optimizer step")
    if traced is None:
        return ExactPeak(stage.pp_rank, composed, None, step, problem=problem)
    standing = stage.weights + stage.gradients + stage.optimizer + library_bytes(spec, chunks)
    return ExactPeak(stage.pp_rank, composed, standing + traced.peak_bytes, step, traced.seconds)
