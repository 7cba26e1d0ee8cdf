"""Traces the layers of Korthikanti et al. 2022 (22B, 175B, 530B) and prints the bytes that one more layer saves.

The paper's layer: LayerNorm, GELU, biases, dropout, unfused attention whose softmax is one kernel that saves its output.
The tracer stands for megatron-core's softmax kernel, which is not in the package.
"""

# ruff: noqa: E402, T201 (adaptations come before megatron)
import json

from harness.engine import trace

trace.prepare(transformer_engine=False)

from harness.engine.tracing.chunk import Groups, build, stage_config
from harness.engine.tracing.run import prepared
from harness.experiment.experiment import ExperimentSpec, KernelSpec
from harness.experiment.model import BatchSpec, ModelSpec, ParallelismSpec
from harness.experiment.recompute import parse_recompute
from harness.records.trace import TraceCase

MODELS = {"22B": (6144, 64, 4), "175B": (12288, 96, 1), "530B": (20480, 128, 1)}  # hidden size, heads, micro-batch
SETTINGS = (
    (1, False, "none"), (8, False, "none"), (8, True, "none"), (8, False, "core_attn"), (8, True, "core_attn"),
    (8, False, "full:uniform:1"), (8, True, "full:uniform:1"),
)  # fmt: skip


def saved(model, tp, sequence_parallel, recompute, num_layers):
    hidden, heads, micro_batch = MODELS[model]
    spec = ExperimentSpec(
        recipe=model.lower(), family="gpt", gpu="a100", num_gpus=8, gpus_per_node=8, compute_dtype="bf16",
        model=ModelSpec(
            num_layers=num_layers, hidden_size=hidden, ffn_hidden_size=4 * hidden, num_attention_heads=heads,
            vocab_size=51200, gated_linear_unit=False, activation_func="gelu", add_bias_linear=True,
            normalization="LayerNorm", position_embedding_type="learned_absolute", attention_dropout=0.1,
            hidden_dropout=0.1,
        ),
        parallelism=ParallelismSpec(tensor_model_parallel_size=tp, sequence_parallel=sequence_parallel),
        batch=BatchSpec(micro_batch_size=micro_batch, global_batch_size=8 * micro_batch, seq_length=2048),
        recompute=parse_recompute(recompute), kernels=KernelSpec(attention_backend="unfused"),
    )  # fmt: skip
    case = TraceCase(key="x", spec=spec, layer_kind="dense", num_layers=num_layers)
    stage = prepared(case, "local", groups)
    return build(case, stage, stage_config(stage)).measure().saved_bytes


groups = Groups()
rows = [
    {"model": model, "tp": tp, "sp": sp, "recompute": recompute,
     "bytes": saved(model, tp, sp, recompute, 2) - saved(model, tp, sp, recompute, 1)}
    for model in MODELS for tp, sp, recompute in SETTINGS
]  # fmt: skip
print(json.dumps(rows))
