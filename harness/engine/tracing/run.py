"""Traces cases one after the other. Lists its assumptions and the cases that it refuses."""

import gc
import os
from collections.abc import Callable
from importlib import metadata
from typing import NamedTuple

import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings import rotary_pos_embedding, yarn_rotary_pos_embedding
from megatron.core.transformer.moe import moe_utils

from harness.engine.tracing import offloading
from harness.engine.tracing.chunk import Groups, build, count, stage_config, stage_spec, workspaces
from harness.engine.tracing.collectives import UnknownCollectiveError
from harness.engine.tracing.routing import PLACE, ROUTING
from harness.experiment.effective import Implementation, effective_recompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import FullRecompute, SelectiveRecompute
from harness.experiment.software import Software
from harness.records.trace import ChunkTrace, TraceCase, TraceRequest


class Remark(NamedTuple):
    """What holds for the cases that it ``applies`` to: an assumption, or why any number would be wrong."""

    text: str
    applies: Callable[[TraceCase], bool]


def _recomputes(case: TraceCase, module: str) -> bool:
    return isinstance(case.spec.recompute, SelectiveRecompute) and module in case.spec.recompute.modules


REFUSALS = (
    Remark(
        "megatron-core defect: `mlp` recompute returns the bias parameter from its checkpoint, and the backward pass "
        "then recurses without end; drop mlp or add_bias_linear",
        lambda case: _recomputes(case, "mlp") and case.spec.model.add_bias_linear and not case.has_experts,
    ),
    Remark(
        "mbr-perf cannot trace the flex dispatcher: its kernels (DeepEP, HybridEP) own their buffers",
        lambda case: case.has_experts and case.spec.kernels.moe_token_dispatcher_type == "flex",  # noqa: S105
    ),
    Remark(
        "mbr-perf cannot trace offload_modules with recompute of whole layers or whole MoE layers: the repeated "
        "forward pass enters megatron-core's groups a second time, in the middle of a backward pass",
        lambda case: (
            bool(case.spec.offload.offload_modules)
            and (isinstance(case.spec.recompute, FullRecompute) or _recomputes(case, "moe"))
        ),
    ),
    Remark(
        "mbr-perf cannot trace overlapped expert-parallel communication: its schedule runs two micro-batches at once",
        lambda case: case.spec.kernels.overlap_moe_expert_parallel_comm,
    ),
)


ASSUMPTIONS = (
    Remark(
        "offload_modules: traced is the second step of megatron-core's own manager; each copy completes at once, and "
        "quantised copies of weights stay on the GPU",
        lambda case: bool(case.spec.offload.offload_modules),
    ),
    Remark(
        "layer-wise offloading: every traced layer is on the host between its passes and returns whole for its "
        "backward pass",
        lambda case: case.spec.offload.cpu_offloading_num_layers > 0,
    ),
    Remark(
        "CUDA graphs: the trace runs eagerly; graphs also keep static buffers and their own memory pool",
        lambda case: case.spec.cuda_graph.impl != "none",
    ),
    Remark(
        "tp_comm_overlap: user buffers are outside torch's allocator; gathers are traced as without overlap",
        lambda case: case.spec.makes_user_buffers,
    ),
    Remark(
        "all ranks send equally many tokens; imbalance scales what this rank receives",
        lambda case: case.has_experts,
    ),
    Remark(
        "moe_shared_expert_overlap: the trace has no streams; kernels run one after another",
        lambda case: case.spec.kernels.moe_shared_expert_overlap,
    ),
    Remark(
        "attention_backend auto: the trace uses cuDNN's fused attention, which transformer-engine prefers on Hopper "
        "and later",
        lambda case: case.spec.kernels.attention_backend == "auto" and not case.spec.gpu_type.is_cpu,
    ),
)


def refusal(case: TraceCase, request: TraceRequest) -> str | None:
    """Return the first reason why ``case`` cannot be traced, or None."""
    if request.implementation == "local" and case.spec.offload.offload_modules:
        return "offload_modules needs transformer-engine's layers"
    if request.implementation == "transformer_engine" and case.spec.gpu_type.is_cpu:
        return "transformer-engine runs on GPUs only"
    return next((row.text for row in REFUSALS if row.applies(case)), None)


def notes_of(case: TraceCase, implementation: Implementation) -> tuple[str, ...]:
    """Return the assumptions of ``case``."""
    notes = [row.text for row in ASSUMPTIONS if row.applies(case)]
    if implementation == "transformer_engine":
        notes.append("workspaces inside cuBLAS, cuDNN and NCCL are not counted")
    return tuple(notes)


_INSTALLED = Software(megatron_core=metadata.version("megatron-core"))


def trace_all(request: TraceRequest, done: Callable[[], object]) -> tuple[dict[str, ChunkTrace], dict[str, str]]:
    """Return the traced chunks and the reasons of refused cases by key. Calls ``done`` after each traced case."""
    PLACE.device = torch.device(request.device)
    ROUTING.imbalance = request.imbalance
    groups = Groups()
    chunks: dict[str, ChunkTrace] = {}
    refused: dict[str, str] = {}
    for case in request.cases:
        reason = refusal(case, request)
        if reason:
            refused[case.key] = reason
            continue
        try:
            chunks[case.key] = trace(case, request.implementation, groups)
        except (ValueError, AssertionError) as error:  # how megatron-core turns down a configuration
            refused[case.key] = f"megatron-core: {error or type(error).__name__}"
        except UnknownCollectiveError as error:  # it refuses this case only; the plan may use others
            refused[case.key] = str(error)
        done()
    return chunks, refused


def prepared(case: TraceCase, implementation: Implementation, groups: Groups) -> ExperimentSpec:
    """Return the stage spec of ``case``, after joining groups and setting up the process for it."""
    spec = stage_spec(case, implementation)
    groups.join(spec.parallelism)
    set_up(spec, implementation)
    return spec


def set_up(spec: ExperimentSpec, implementation: Implementation) -> None:
    """Prepare the process for ``spec``: choose the imitated kernels, and reset shared buffers."""
    PLACE.target = "cpu" if spec.gpu_type.is_cpu else "cuda"
    if implementation == "transformer_engine":
        _stand_in_for(spec)
    _forget_shared_buffers()
    gc.collect()
    gc.freeze()  # objects of imports never die: collecting among them again would take longer than a trace


def trace(case: TraceCase, implementation: Implementation, groups: Groups) -> ChunkTrace:
    """Trace one case; ValueError or AssertionError if megatron-core refuses its configuration."""
    spec = prepared(case, implementation, groups)
    chunk = build(case, spec, stage_config(spec))
    measured, parameters = chunk.measure(), count(chunk.model)
    return ChunkTrace(
        **measured,
        num_parameters_dense=parameters.dense,
        num_parameters_expert=parameters.expert,
        parameter_bytes=parameters.bytes + workspaces(chunk.model),
        inert_modules=tuple(effective_recompute(spec, implementation, _INSTALLED).inert_modules),
        notes=notes_of(case, implementation),
    )


def _forget_shared_buffers() -> None:
    """Forget buffers and tables that megatron-core keeps per process, so that every case starts alike."""
    parallel_state.destroy_global_memory_buffer()
    parallel_state._set_global_memory_buffer()
    _aux_losses().clear()
    moe_utils.MoEAuxLossAutoScaler.main_loss_backward_scale = None
    for cached in (
        rotary_pos_embedding.RotaryEmbedding.forward,
        yarn_rotary_pos_embedding.YarnRotaryEmbedding.forward,
        yarn_rotary_pos_embedding._yarn_get_concentration_factor,
    ):
        cached.cache_clear()
    _forget_dummy_gradients()
    offloading.forget()


def _aux_losses() -> dict:
    """Return the auxiliary losses by name, an entry per layer; newer releases return a copy under the older name."""
    tracker = getattr(moe_utils, "get_moe_metrics_tracker", None)
    return tracker().metrics if tracker else moe_utils.get_moe_layer_wise_logging_tracker()


def _stand_in_for(spec: ExperimentSpec) -> None:
    """Set the stand-in's GPU. megatron-core sets the attention variables itself and refuses other values."""
    from transformer_engine.pytorch.formats import MACHINE

    MACHINE.capability = spec.gpu_type.capability
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        os.environ.pop(name, None)


def _forget_dummy_gradients() -> None:
    from megatron.core.extensions.transformer_engine import HAVE_TE

    if HAVE_TE:
        from transformer_engine.pytorch.module.base import forget_dummy_wgrads

        forget_dummy_wgrads()
