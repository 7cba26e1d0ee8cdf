"""All cases of a request, one after another in one process."""

import gc
import os
from importlib import metadata

import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings import rotary_pos_embedding, yarn_rotary_pos_embedding
from megatron.core.transformer.moe import moe_utils

from harness.engine.tracing import offloading
from harness.engine.tracing.assumptions import notes_of, refusal
from harness.engine.tracing.building import Groups, build, stage_config, stage_spec
from harness.engine.tracing.chunk import count
from harness.engine.tracing.routing import PLACE, ROUTING
from harness.experiment.effective import Implementation, effective_recompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.software import Software
from harness.records.trace import ChunkTrace, TraceCase, TraceRequest

_INSTALLED = Software(megatron_core=metadata.version("megatron-core"))


def trace_all(request: TraceRequest) -> tuple[dict[str, ChunkTrace], dict[str, str]]:
    """The traced chunks by key, and the refused cases with the reason each."""
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
    return chunks, refused


def prepared(case: TraceCase, implementation: Implementation, groups: Groups) -> ExperimentSpec:
    """The stage spec of ``case``, with groups joined and the process set up for it."""
    spec = stage_spec(case, implementation)
    groups.join(spec.parallelism)
    set_up(spec, implementation)
    return spec


def set_up(spec: ExperimentSpec, implementation: Implementation) -> None:
    """The process made ready for ``spec``: whose kernels are imitated, shared buffers as at the start."""
    PLACE.target = "cpu" if spec.gpu_type.is_cpu else "cuda"
    if implementation == "transformer_engine":
        _stand_in_for(spec)
    _forget_shared_buffers()
    gc.collect()
    gc.freeze()  # what imports and first calls made never dies: looking through it again would outlast a trace


def trace(case: TraceCase, implementation: Implementation, groups: Groups) -> ChunkTrace:
    """One case; ValueError or AssertionError where megatron-core refuses its configuration."""
    spec = prepared(case, implementation, groups)
    chunk = build(case, spec, stage_config(spec))
    measured = chunk.measure()
    parameters = count(chunk.model)
    return ChunkTrace(
        saved_bytes=measured.saved_bytes,
        forward_peak_bytes=measured.forward_peak_bytes,
        backward_peak_bytes=measured.backward_peak_bytes,
        persistent_bytes=measured.persistent_bytes,
        lingering_bytes=measured.lingering_bytes,
        leaving_over_bytes=measured.leaving_over_bytes,
        hidden_bytes=chunk.hidden_bytes,
        num_parameters_dense=parameters.dense,
        num_parameters_expert=parameters.expert,
        parameter_bytes=parameters.bytes + measured.workspace_bytes,
        ops=measured.ops,
        inert_modules=tuple(effective_recompute(spec, implementation, _INSTALLED).inert_modules),
        notes=notes_of(case, implementation),
    )


def _forget_shared_buffers() -> None:
    """Buffers and tables that megatron-core keeps per process, so that every case finds the same start."""
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
    """By name, with an entry per layer; of the name that newer releases deprecate they hand out a copy."""
    tracker = getattr(moe_utils, "get_moe_metrics_tracker", None)
    return tracker().metrics if tracker else moe_utils.get_moe_layer_wise_logging_tracker()


def _stand_in_for(spec: ExperimentSpec) -> None:
    """Tell the stand-in which GPU it is on; megatron-core sets the attention variables itself and refuses others."""
    from transformer_engine.pytorch.machine import MACHINE

    MACHINE.capability = spec.gpu_type.capability
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        os.environ.pop(name, None)


def _forget_dummy_gradients() -> None:
    from megatron.core.extensions.transformer_engine import HAVE_TE

    if HAVE_TE:
        from transformer_engine.pytorch.module.base import forget_dummy_wgrads

        forget_dummy_wgrads()
