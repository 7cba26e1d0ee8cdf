"""Traces made by hand: every byte follows from the case by arithmetic that a reader can redo."""

import pytest

from harness.planning.search import Traces
from harness.records.trace import ChunkTrace, OpCost, TraceCase

HIDDEN = 16
LAYER_SAVED = {"none": 100, "core_attn": 90, "mlp": 40, "core_attn,mlp": 30, "full:uniform:1": 16}
LAYER_PEAK = {"none": 20, "core_attn": 25, "mlp": 70, "core_attn,mlp": 75, "full:uniform:1": 120}
PARAMETERS = 1000


def trace_by_hand(case: TraceCase) -> ChunkTrace:
    """A layer keeps 100 bytes (less with recompute); 4 belong to the micro-batch; embedding 8, loss 50 more."""
    text = case.spec.recompute.text
    saved = 4 + case.num_layers * LAYER_SAVED[text] + 8 * case.pre + 50 * case.post
    recomputed = 30 if text != "none" else 0
    ops = [
        OpCost(phase="forward", kind="gemm", dtype="bf16", flops=600 * case.num_layers, count=case.num_layers),
        OpCost(phase="backward", kind="gemm", dtype="bf16", flops=1200 * case.num_layers, count=case.num_layers),
    ]
    if recomputed:
        ops.append(OpCost(phase="recompute", kind="gemm", dtype="bf16", flops=recomputed * case.num_layers,
                          count=case.num_layers))  # fmt: skip
    return ChunkTrace(
        saved_bytes=saved,
        forward_peak_bytes=saved + (12 if case.post else 10),
        backward_peak_bytes=30 if case.post else LAYER_PEAK[text],
        persistent_bytes=7 + case.num_layers,
        hidden_bytes=HIDDEN,
        num_parameters_dense=PARAMETERS * case.num_layers + 500 * case.pre + 500 * case.post,
        num_parameters_expert=0,
        parameter_bytes=2 * PARAMETERS * case.num_layers + 1000 * case.pre + 1000 * case.post,
        ops=tuple(ops),
    )


@pytest.fixture
def by_hand():
    """Traces of cases, as the tracer would hand them over."""

    def make(cases) -> Traces:
        return Traces(even={case.key: trace_by_hand(case) for case in cases}, uneven=None, refused={})

    return make


@pytest.fixture
def spec_of():
    """Specs with hidden sizes that fit what is traced by hand; see `build_spec` of the tests' root."""
    from harness.spec.experiment import ExperimentSpec

    def make(**changes) -> ExperimentSpec:
        fields = {
            "recipe": "llama3_70b",
            "family": "llama",
            "gpu": "h100",
            "num_gpus": 32,
            "gpus_per_node": 8,
            "compute_dtype": "bf16",
            "model": {
                "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64,
                "num_query_groups": 8, "vocab_size": 128256, "position_embedding_type": "none",
            },
            "parallelism": {
                "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4,
                "virtual_pipeline_model_parallel_size": 5, "sequence_parallel": True,
            },
            "batch": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
            "kernels": {"transformer_impl": "transformer_engine"},
        }  # fmt: skip
        return ExperimentSpec(**fields | changes)

    return make


@pytest.fixture
def moe_spec(spec_of):
    """Every second layer has experts: 64 GPUs, TP 4, PP 4, EP 8, ETP 1, DP 4."""
    return spec_of(
        num_gpus=64,
        model={
            "num_layers": 8, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
            "vocab_size": 32000, "position_embedding_type": "none",
            "moe": {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 14336, "moe_layer_freq": 2},
        },
        parallelism={
            "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4, "expert_model_parallel_size": 8,
            "expert_tensor_parallel_size": 1, "sequence_parallel": True,
        },
    )  # fmt: skip
