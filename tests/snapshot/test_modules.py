"""Stacks of megatron-core as names of its modules."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.snapshot.stacks import (
    BACKWARD,
    NO_STACK,
    ROWS,
    UNKNOWN,
    Frame,
    Stacks,
    forward_modules,
    module_of,
    site_of,
)

MCORE = "/v/lib/python3.12/site-packages/megatron/core/"


def frames(*lines: tuple[str, str]) -> list[Frame]:
    return [Frame(path if path.startswith("/") else MCORE + path, 7, function) for path, function in lines]


@pytest.mark.parametrize(
    ("stack", "module"),
    [
        ((("transformer/dot_product_attention.py", "forward"), ("transformer/attention.py", "forward")), "core_attn"),
        ((("/v/site-packages/transformer_engine/pytorch/attention/backends.py", "forward"), ("transformer/attention.py", "forward")), "core_attn"),
        ((("tensor_parallel/layers.py", "forward"), ("transformer/attention.py", "forward")), "attention"),
        ((("fusions/fused_bias_swiglu.py", "forward"), ("transformer/mlp.py", "forward")), "mlp"),
        ((("fusions/fused_bias_swiglu.py", "forward"), ("transformer/moe/experts.py", "bias_act_func")), "moe_act"),
        ((("tensor_parallel/layers.py", "forward"), ("transformer/mlp.py", "forward"), ("transformer/moe/shared_experts.py", "forward")), "shared_experts"),
        ((("transformer/mlp.py", "forward"), ("transformer/moe/experts.py", "forward"), ("transformer/moe/moe_layer.py", "forward")), "moe"),
        ((("transformer/moe/token_dispatcher.py", "dispatch"),), "moe"),
        ((("transformer/multi_latent_attention.py", "qkv_up_proj_and_rope_apply"),), "mla_up_proj"),
        ((("tensor_parallel/layers.py", "__init__"), ("transformer/mlp.py", "__init__")), "mlp (weights)"),
        ((("optimizer/distrib_optimizer.py", "__init__"),), "optimizer"),
        ((("transformer/mlp.py", "forward"), ("tensor_parallel/random.py", "backward")), "mlp (recompute)"),
        ((("fusions/fused_bias_swiglu.py", "swiglu_back"), ("fusions/fused_bias_swiglu.py", "backward")), BACKWARD),
        ((("/v/site-packages/torch/nn/modules/normalization.py", "forward"), ("transformer/transformer_layer.py", "_forward_attention")), "layernorm"),
        ((("models/common/embeddings/rope_utils.py", "_apply_rotary_pos_emb_bshd"), ("transformer/attention.py", "forward")), "attention"),
        ((("distributed/distributed_data_parallel.py", "hook"), ("tensor_parallel/random.py", "backward")), "data parallelism"),
        ((("/home/user/train.py", "main"),), UNKNOWN),
    ],
)  # fmt: skip
def test_the_innermost_frame_that_is_in_the_table_names_the_module(stack: tuple[tuple[str, str], ...], module: str):
    assert module_of(frames(*stack)) == module


def test_a_site_is_the_innermost_line_above_torch_and_the_kernels():
    stack = frames(
        ("/v/lib/python3.12/site-packages/torch/nn/functional.py", "linear"),
        ("/usr/lib/python3.12/contextlib.py", "inner"),
        ("transformer/mlp.py", "forward"),
        ("/home/user/train.py", "main"),
    )
    assert site_of(stack) == "megatron/core/transformer/mlp.py:7 forward"


def test_a_stack_without_a_line_of_python_names_the_operation_and_what_autograd_runs():
    operation = Frame("RegisterCUDA.cpp", 0, "at::(anonymous namespace)::create_out(c10::ArrayRef<long>)")
    product = Frame("??", 0, "at::_ops::bmm::call(at::Tensor const&, at::Tensor const&)")
    node = Frame("Functions.cpp", 0, "torch::autograd::generated::BmmBackward0::apply(std::vector<at::Tensor>&&)")
    forward = Frame("/home/me/model.py", 22, "forward")
    assert (site_of([operation, product]), module_of([operation, product])) == ("at::bmm", UNKNOWN)
    assert (site_of([operation, product, node]), module_of([operation, product, node])) == ("BmmBackward0", BACKWARD)
    assert site_of([operation, product, forward]) == "/home/me/model.py:22 forward"


def test_the_recorder_of_stacks_is_never_charged():
    recorder = [
        {"filename": "torch/csrc/profiler/combined_traceback.cpp", "line": 1, "name": "torch::CapturedTraceback::gather(bool, bool, bool)"},
        {"filename": "torch/csrc/cuda/memory_snapshot.cpp", "line": 7, "name": "torch::cuda::(anonymous namespace)::gather_with_cpp()"},
        {"filename": "CUDACachingAllocator.cpp", "line": 0, "name": "c10::cuda::CUDACachingAllocator::Native::malloc(void**)"},
    ]  # fmt: skip
    kernel = {"filename": "aten/src/ATen/native/cuda/Blas.cpp", "line": 3, "name": "at::native::addmm"}
    stacks = Stacks()
    assert stacks.of([*recorder, kernel]).owner.site.endswith("Blas.cpp:3 at::native::addmm")
    assert stacks.of(recorder).owner == (NO_STACK, "")


@pytest.mark.parametrize(
    ("stack", "modules"),
    [
        ((("tensor_parallel/layers.py", "forward"), ("transformer/mlp.py", "forward")), {"mlp"}),
        ((("transformer/mlp.py", "forward"), ("transformer/moe/moe_layer.py", "forward")), {"moe"}),
        ((("fusions/fused_bias_swiglu.py", "forward"), ("transformer/moe/experts.py", "bias_act_func"), ("transformer/moe/moe_layer.py", "forward")), {"moe", "moe_act"}),
        ((("transformer/mlp.py", "forward"), ("tensor_parallel/random.py", "backward")), set()),
        ((("tensor_parallel/layers.py", "__init__"), ("transformer/mlp.py", "__init__")), set()),
        ((("transformer/attention.py", "forward"),), set()),  # not recomputed by itself
    ],
)  # fmt: skip
def test_a_stack_lies_in_the_forward_passes_of_modules_that_can_be_recomputed(stack, modules):
    assert forward_modules(frames(*stack)) == modules


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.frames.path.startswith("megatron/core/")], ids=lambda row: row.frames.path
)
def test_every_path_of_megatron_core_exists_where_it_is_installed(row: object):
    found = find_spec("megatron")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no megatron-core")
    roots = [Path(place).parent for place in found.submodule_search_locations]
    path = row.frames.path  # type: ignore[attr-defined]
    assert any((root / path).exists() for root in roots), path
    for function in row.frames.functions:  # type: ignore[attr-defined]
        assert any(f"def {function}(" in (root / path).read_text() for root in roots), function
