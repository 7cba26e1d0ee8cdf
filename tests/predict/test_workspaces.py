"""Workspaces by hand: torch's two handles, transformer-engine's own."""

import pytest

from harness.predict.ledger import user_buffer_bytes, workspace_bytes

MIB = 1024**2
FIXED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def bytes_of(make_spec, *, has_experts=False, has_loss=True, **changes):
    kernels = {"transformer_impl": "transformer_engine"} | changes.pop("kernels", {})
    return workspace_bytes(
        make_spec(compute_dtype="bf16", kernels=kernels, **changes), has_experts=has_experts, has_loss=has_loss
    )


@pytest.mark.parametrize(
    ("gpu", "env", "expected"),
    [
        ("h100", {}, (2 * 32 + 32) * MIB),
        ("h100", FIXED, (2 * 32 + 32) * MIB),
        ("a100", FIXED, (2 * 32 + 4) * MIB),
        ("a100", {}, 2 * (8 * MIB + 128 * 1024) + 4 * MIB),
        ("gb200", {}, (2 * 32 + 32) * MIB),
        ("h100", {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, 2 * 128 * 1024 + 32 * MIB),
        ("h100", {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}, 2 * (8 * MIB + 128 * 1024) + 32 * MIB),
    ],
)
def test_torch_has_a_workspace_for_each_thread_that_multiplies(make_spec, gpu, env, expected):
    assert bytes_of(make_spec, gpu=gpu, env=env) == expected


@pytest.mark.parametrize(
    ("changes", "mib"),
    [
        ({"has_loss": False}, 32),
        ({"has_loss": True}, 96),
        ({"has_loss": False, "has_experts": True}, 96),
        ({"kernels": {"transformer_impl": "local"}}, 64),  # without workspaces of transformer-engine
    ],
)
def test_torch_multiplies_in_the_output_layer_and_in_routers_alone(make_spec, changes, mib):
    assert bytes_of(make_spec, gpu="h100", **changes) == mib * MIB


def test_overlapped_tensor_parallel_gemms_have_three_more(make_spec):
    sizes = {"parallelism": {"tensor_model_parallel_size": 2, "sequence_parallel": True}, "num_gpus": 2}
    overlapping = bytes_of(make_spec, gpu="h100", kernels={"tp_comm_overlap": True}, **sizes)
    assert overlapping - bytes_of(make_spec, gpu="h100", **sizes) == 3 * 32 * MIB


OVERLAP = {"transformer_impl": "transformer_engine", "tp_comm_overlap": True}
LLAMA = {"parallelism": {"tensor_model_parallel_size": 4, "sequence_parallel": True}, "num_gpus": 4}


def test_user_buffers_of_bf16_are_twelve_whole_ones_and_without_overlap_there_are_none(make_spec):
    spec = make_spec(gpu="h100", compute_dtype="bf16", kernels=OVERLAP, **LLAMA)
    assert user_buffer_bytes(spec) == 12 * 4096 * 8192 * 2
    assert user_buffer_bytes(make_spec(gpu="h100", kernels={"transformer_impl": "transformer_engine"}, **LLAMA)) == 0
    idle = {"parallelism": {"tensor_model_parallel_size": 4}, "num_gpus": 4}
    assert user_buffer_bytes(make_spec(gpu="h100", kernels=OVERLAP, **idle)) == 0


def test_gathered_operands_lie_in_them_as_fp8_and_ring_exchanges_that_reduce_hold_the_parts_of_others(make_spec):
    named = OVERLAP | {"tp_comm_overlap_cfg": "userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192"}
    spec = make_spec(gpu="h100", compute_dtype="fp8_cs", kernels=named, **LLAMA)
    assert user_buffer_bytes(spec) == 4096 * 8192 * (8 * 1 + 2 * 2) + 2 * 4096 * 8192 * 2 * 7 // 4
