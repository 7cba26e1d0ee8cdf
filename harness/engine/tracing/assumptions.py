"""What a trace takes for granted, and what it will not pretend to know."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.experiment.effective import Implementation
from harness.experiment.recompute import FullRecompute, SelectiveRecompute
from harness.records.trace import TraceCase, TraceRequest


@dataclass(frozen=True)
class Assumption:
    """A statement that holds for the cases ``applies`` to."""

    text: str
    applies: Callable[[TraceCase], bool]


@dataclass(frozen=True)
class Refusal:
    """Why a case cannot be traced; any number from it would be wrong."""

    reason: str
    applies: Callable[[TraceCase], bool]


def _recomputes(case: TraceCase, module: str) -> bool:
    return isinstance(case.spec.recompute, SelectiveRecompute) and module in case.spec.recompute.modules


def _cuts_unevenly(case: TraceCase) -> bool:
    policy = case.spec.recompute
    if not isinstance(policy, FullRecompute) or policy.method != "uniform":
        return False
    return case.num_layers % policy.num_layers != 0


REFUSALS = (
    Refusal(
        "megatron-core defect: `mlp` recompute returns the bias parameter from its checkpoint, and the backward pass then "
        "recurses without end; drop mlp or add_bias_linear",
        lambda case: _recomputes(case, "mlp") and case.spec.model.add_bias_linear and case.layer_kind == "dense",
    ),
    Refusal(
        "the flex dispatcher is not modelled: its kernels (DeepEP, HybridEP) own their buffers",
        lambda case: case.layer_kind == "moe" and case.spec.kernels.moe_token_dispatcher_type == "flex",  # noqa: S105
    ),
    Refusal(
        "offload_modules with recompute of whole layers or whole MoE layers is not modelled: the repeated forward pass "
        "enters megatron-core's groups a second time, in the middle of a backward pass",
        lambda case: (
            bool(case.spec.offload.offload_modules)
            and (isinstance(case.spec.recompute, FullRecompute) or _recomputes(case, "moe"))
        ),
    ),
    Refusal(
        "overlapped expert-parallel communication is not modelled: its schedule runs two micro-batches at once",
        lambda case: case.spec.kernels.overlap_moe_expert_parallel_comm,
    ),
    Refusal(
        "uniform recompute: megatron-core 0.16 needs a chunk whose layers are a multiple of recompute_num_layers",
        _cuts_unevenly,
    ),
)


ASSUMPTIONS = (
    Assumption(
        "offload_modules: the second step of megatron-core's own manager, each copy done at once, quantised copies of "
        "weights left where they are",
        lambda case: bool(case.spec.offload.offload_modules),
    ),
    Assumption(
        "layer-wise offloading: every layer of the trace is away between its passes, and back as a whole in backward",
        lambda case: case.spec.offload.cpu_offloading_num_layers > 0,
    ),
    Assumption(
        "CUDA graphs: eager execution was traced; graphs keep static buffers and a memory pool of their own",
        lambda case: case.spec.cuda_graph.impl != "none",
    ),
    Assumption(
        "tp_comm_overlap: user buffers lie outside of torch's allocator; gathers are traced as without overlap",
        lambda case: case.spec.makes_user_buffers,
    ),
    Assumption(
        "tokens are spread evenly over the ranks that send them; imbalance scales what this rank receives",
        lambda case: case.layer_kind == "moe",
    ),
    Assumption(
        "shared experts overlap: streams are not modelled, kernels run one after another",
        lambda case: case.spec.kernels.moe_shared_expert_overlap,
    ),
    Assumption(
        "attention backend auto: cuDNN's fused attention, which transformer-engine prefers on Hopper and later",
        lambda case: case.spec.kernels.attention_backend == "auto" and not case.spec.gpu_type.is_cpu,
    ),
)


def refusal(case: TraceCase, request: TraceRequest) -> str | None:
    """The first reason why ``case`` cannot be traced, or None."""
    if request.implementation == "local" and case.spec.parallelism.context_parallel_size > 1:
        return "context parallelism needs transformer-engine's attention"
    if request.implementation == "local" and case.spec.offload.offload_modules:
        return "offload_modules needs transformer-engine's layers"
    if request.implementation == "transformer_engine" and case.spec.gpu_type.is_cpu:
        return "transformer-engine runs on GPUs only"
    return next((row.reason for row in REFUSALS if row.applies(case)), None)


def notes_of(case: TraceCase, implementation: Implementation) -> tuple[str, ...]:
    """The assumptions that ``case`` rests on."""
    notes = [row.text for row in ASSUMPTIONS if row.applies(case)]
    if implementation == "transformer_engine":
        notes.append("op-internal workspaces (cuBLAS, cuDNN, NCCL) are not counted")
    return tuple(notes)
