"""Every shipped GPU point that the rules let run builds its layers and trains them under transformer-engine's own Python.

Process groups send nothing and kernels compute nothing. `LEFT_OUT` lists what points have and the layers here lack.
"""

from collections import Counter

import pytest
from pydantic import BaseModel

from tests.real_te import shipped_points

pytestmark = [pytest.mark.train, pytest.mark.slow]

# Points that do not run, by the rules that refuse them: how many of which recipe on which GPU.
REFUSED = {
    ("G18", "G27"): {
        "deepseek_v3 b300": 2, "deepseek_v3 gb200": 2, "deepseek_v3 gb300": 2, "qwen3_235b_a22b b200": 2,
        "qwen3_235b_a22b b300": 2, "qwen3_235b_a22b gb200": 3, "qwen3_235b_a22b gb300": 3, "qwen3_30b_a3b b300": 1,
        "qwen3_30b_a3b gb200": 1, "qwen3_30b_a3b gb300": 1,
    },
    ("G27",): {"deepseek_v3 gb300": 1, "qwen3_30b_a3b gb200": 1},
    ("K28",): {"gpt3_175b a100": 1},
    ("inconsistent",): {
        "deepseek_v3 gb200": 1, "deepseek_v3 gb300": 1, "deepseek_v3 h100": 2, "qwen3_235b_a22b b200": 1,
        "qwen3_235b_a22b gb200": 3, "qwen3_235b_a22b gb300": 4,
    },
}  # fmt: skip

# Settings of points that their layers here do not have: number of points, and why. A prefix stands for its fields.
LEFT_OUT = {
    "cuda_graph": (87, "capture needs CUDA; `engine/test_gpu_calls.py` reads the order of calls from a recording"),
    "ddp.nccl_ub": (2, "it registers buffers of the whole job with NCCL, which sends nothing here"),
    "ddp.use_megatron_fsdp": (17, "it cuts and gathers parameters over a whole group of ranks; here is one rank"),
    "kernels.overlap_moe_expert_parallel_comm": (
        12, "its schedule interleaves two micro-batches on two streams and takes weight gradients later; here is one"
    ),
    "model.mtp_num_layers": (27, "the MTP layers lie in the last chunk with the loss; here are decoder layers only"),
    "offload.cpu_offloading_num_layers": (
        13, "transformer-engine copies activations into pinned memory, on a stream of its own; tensors here have no data"
    ),
    "parallelism.defer_embedding_wgrad_compute": (10, "it concerns the output layer; here are decoder layers only"),
}  # fmt: skip
# What one layer of one rank does not depend on: names, other ranks, other stages, the step around it.
OUTSIDE = (
    "recipe", "family", "task", "num_gpus", "gpus_per_node", "batch.global_batch_size", "optimizer", "train",
    "ddp.align_", "ddp.average_in_collective", "ddp.bucket_size", "ddp.overlap_",
    "parallelism.pipeline_model_parallel", "parallelism.virtual_pipeline", "parallelism.account_for",
    "parallelism.num_layers_in_", "parallelism.wgrad_deferral_limit", "parallelism.deallocate_pipeline_outputs",
)  # fmt: skip
# What layers say in other words: their number and kind, without the settings and modules of the other kind, whole layers one
# by one, the implementation that "auto" gives, all-to-all for the flex dispatcher, whose kernels need a GPU, of the variables
# those that transformer-engine reads, and for the GPU the first of its compute capability.
REWORDED = (
    "gpu", "model.num_layers", "model.moe.moe_layer_freq", "model.window_attn_skip_freq",
    "model.linear_attention.linear_attention_freq", "recompute", "kernels.transformer_impl", "env",
    "kernels.moe_token_dispatcher_type", "kernels.moe_flex_dispatcher_backend", "parallelism.expert_tensor_parallel_size",
)  # fmt: skip


@pytest.fixture(scope="module")
def points():
    return shipped_points.shipped_points()


@pytest.fixture(scope="module")
def layers(points):
    """The layers of all points that run, each once; key -> case and the points that have it."""
    found = {}
    for point in points:
        for case in shipped_points.layers_of(point) if not point.refused else ():
            found.setdefault(case.key, (case, []))[1].append(f"{point.name} {point.gpu} {point.spec.compute_dtype}")
    return found


def test_the_rules_refuse_these_points_and_no_others(points):
    counted = Counter((point.refused, f"{point.name} {point.gpu}") for point in points if point.refused)
    expected = {(rules, name): count for rules, names in REFUSED.items() for name, count in names.items()}
    assert counted == expected
    assert len(points) == 263


def test_layers_lack_what_is_listed_and_nothing_else(points):
    lacking = Counter()
    for point in points:
        layers = () if point.refused else shipped_points.layers_of(point)
        fields = {field for case in layers for field in changed(flat(point.spec), flat(case.spec))}
        lacking.update({row for row in map(row_of, fields) if row})
    assert lacking == {row: count for row, (count, _why) in LEFT_OUT.items()}


def flat(model, prefix=""):
    """Path of a field -> value; empty parts have no fields."""
    found = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else {f"{prefix}{name}": value}
    return found


def changed(ours, theirs):
    """Paths that differ or that one side lacks."""
    return {path for path in ours.keys() | theirs.keys() if (path, ours.get(path)) != (path, theirs.get(path))}


def row_of(field):
    """The row of `LEFT_OUT`, None where the field need not be there, the field itself where nothing lists it."""
    row = next((row for row in LEFT_OUT if field.startswith(row)), None)
    return row or (None if field.startswith((*OUTSIDE, *REWORDED)) else field)


def test_one_layer_of_each_form_trains(layers, real_trace):
    train(sample(layers), layers, real_trace)


@pytest.mark.long
def test_the_layers_of_all_other_points_train(layers, real_trace):
    train(layers.keys() - sample(layers), layers, real_trace)


def train(keys, layers, real_trace):
    found = real_trace(layers[key][0] for key in sorted(keys))
    assert {key: (layers[key][1], answer["failed"]) for key, answer in found.items() if "failed" in answer} == {}
    assert found.keys() == keys
    assert all(answer["saved_bytes"] > 0 for answer in found.values())


def sample(layers):
    """Keys of one layer of each form."""
    return set({form(case): key for key, (case, _points) in layers.items()}.values())


def form(case):
    """Kind of layer, precision and recompute: one layer of each is the sample."""
    spec = case.spec
    kind = (case.layer_kind, spec.model.mla is not None, spec.makes_user_buffers)
    return kind if spec.recompute.granularity == "none" and spec.compute_dtype == "bf16" else (
        case.layer_kind, spec.model.mla is not None, spec.compute_dtype, spec.recompute.text,
    )  # fmt: skip
