"""Workspaces by hand: torch's two handles, transformer-engine's own."""

import pytest

from harness.planning.workspaces import workspace_bytes

MIB = 1024**2
FIXED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def bytes_of(make_spec, *, has_experts=False, **changes):
    kernels = {"transformer_impl": "transformer_engine"} | changes.pop("kernels", {})
    return workspace_bytes(make_spec(compute_dtype="bf16", kernels=kernels, **changes), has_experts=has_experts)


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


def test_local_layers_need_no_workspace_of_transformer_engine(make_spec):
    assert bytes_of(make_spec, gpu="h100", kernels={"transformer_impl": "local"}) == 2 * 32 * MIB


def test_overlapped_tensor_parallel_gemms_have_three_more(make_spec):
    sizes = {"parallelism": {"tensor_model_parallel_size": 2, "sequence_parallel": True}, "num_gpus": 2}
    overlapping = bytes_of(make_spec, gpu="h100", kernels={"tp_comm_overlap": True}, **sizes)
    assert overlapping - bytes_of(make_spec, gpu="h100", **sizes) == 3 * 32 * MIB


def test_a_processor_has_none(make_spec):
    assert bytes_of(make_spec, gpu="cpu") == 0
