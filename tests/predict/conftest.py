"""Traces made by hand: every byte follows from the case by arithmetic that a reader can redo."""

from threading import Event

import pytest

from harness.launch.environment import this_host
from harness.predict.search import Traces
from harness.predict.tracer import TIMEOUT_S, Tracing
from harness.predict.tracer_processes import WarmTracers
from harness.records.trace import ChunkTrace, OpCost, TraceCase

HIDDEN = 16
PARAMETERS = 1000
LAYER_FLOPS = 600 * 10**12
# What a module frees of a layer's 100 bytes, what recomputing it takes for a moment, and its share of the FLOPs.
MODULES = {"core_attn": (10, 5, 0.05), "mlp": (60, 50, 0.6)}
OTHER_MODULE = (5, 5, 0.01)


def _layer(text: str) -> tuple[int, int, float]:
    """Bytes kept, bytes of the backward pass beside them, share of the forward FLOPs that runs again."""
    if text.startswith("full"):
        return HIDDEN, 120, 1.0
    effects = [MODULES.get(name, OTHER_MODULE) for name in text.split(",")] if text != "none" else []
    freed, taken, again = (sum(column) for column in zip(*effects, strict=True)) if effects else (0, 0, 0.0)
    return 100 - freed, 20 + taken, again


def trace_by_hand(case: TraceCase) -> ChunkTrace:
    """A layer keeps 100 bytes (less with recompute); 4 belong to the micro-batch; embedding 8, loss 50 more."""
    kept, beside, again = _layer(case.spec.recompute.text)
    saved = 4 + case.num_layers * kept + 8 * case.pre + 50 * case.post
    shares = {"forward": 1.0, "backward": 2.0, "recompute": again}
    return ChunkTrace(
        saved_bytes=saved,
        forward_peak_bytes=saved + (12 if case.post else 10),
        backward_peak_bytes=30 if case.post else beside,
        persistent_bytes=7 + case.num_layers,
        hidden_bytes=HIDDEN,
        num_parameters_dense=PARAMETERS * case.num_layers + 500 * case.pre + 500 * case.post,
        num_parameters_expert=0,
        parameter_bytes=2 * PARAMETERS * case.num_layers + 1000 * case.pre + 1000 * case.post,
        ops=tuple(
            OpCost(phase=phase, kind="gemm", dtype="bf16", flops=round(LAYER_FLOPS * share) * case.num_layers,
                   count=case.num_layers)
            for phase, share in shares.items() if share
        ),
    )  # fmt: skip


@pytest.fixture(scope="session")
def tracing():
    """The real tracer. Its process imports torch and megatron-core once, for three seconds, and forks for each request."""
    with WarmTracers(this_host(), TIMEOUT_S, Event()) as warm:
        yield Tracing(this_host(), None, warm=warm)


@pytest.fixture
def by_hand():
    """Traces of cases, as the tracer would hand them over."""

    def make(cases) -> Traces:
        return Traces(even={case.key: trace_by_hand(case) for case in cases}, uneven=None, refused={})

    return make


@pytest.fixture
def spec_of():
    """Specs with hidden sizes that fit what is traced by hand; see `build_spec` of the tests' root."""
    from harness.experiment.experiment import ExperimentSpec

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


def row_of(planned, text):
    """The row of one setting in a plan."""
    (row,) = (row for row in planned.rows if row.text == text)
    return row
