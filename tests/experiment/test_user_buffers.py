import pytest
from pydantic import ValidationError

from harness.experiment.experiment import KernelSpec
from harness.experiment.user_buffers import NAMED, UserBuffers

H100_70B = "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"


def test_a_name_is_kept_as_its_buffers_so_that_a_record_says_them_all():
    kernels = KernelSpec.model_validate({"tp_comm_overlap_cfg": H100_70B})
    assert kernels.tp_comm_overlap_cfg == NAMED[H100_70B]
    assert KernelSpec.model_validate(kernels.model_dump()) == kernels
    assert KernelSpec.model_validate_json(kernels.model_dump_json()) == kernels


def test_transformer_engine_gets_every_named_buffer_with_its_settings():
    assert NAMED[H100_70B].ub_cfgs["fc2_fprop"] == {
        "method": "pipeline", "num_sm": 16, "cga_size": 2, "num_splits": 4, "set_sm_margin": True, "fp8_buf": False,
    }  # fmt: skip
    assert NAMED[H100_70B].ub_cfgs["qkv_wgrad"] == {
        "method": "bulk", "num_sm": 24, "cga_size": 2, "set_sm_margin": False,
    }  # fmt: skip
    assert all(len(buffers.ub_cfgs) == 10 for buffers in NAMED.values())


def test_a_gemm_that_is_left_out_is_left_to_transformer_engine():
    buffers = UserBuffers.model_validate({"proj_fprop": {"method": "ring_exchange"}})
    assert list(buffers.ub_cfgs) == ["proj_fprop"]


def test_buffers_read_as_one_line_by_method():
    buffers = UserBuffers.model_validate(
        {
            "fc1_dgrad": {"method": "bulk", "num_sm": 2},
            "proj_fprop": {"method": "pipeline"},
            "qkv_dgrad": {"method": "bulk"},
        }
    )
    assert str(buffers) == "bulk qkv_dgrad 16 SMs, fc1_dgrad 2 SMs; pipeline proj_fprop 16 SMs"


@pytest.mark.parametrize(
    "wrong",
    [
        {"proj_wgrad": {"method": "bulk"}},
        {"qkv_fprop": {"method": "pipeline"}},
        {"proj_fprop": {"method": "bulk"}},
        {"qkv_dgrad": {"method": "ring_exchange"}},
        {"fc1_fprop": {"method": "ring_exchange", "num_sm": True}},
        {"proj_fprop": {"method": "ring_exchange", "fp8_buf": True}},
    ],
)
def test_what_transformer_engine_would_ignore_or_refuse_does_not_construct(wrong: dict[str, object]):
    with pytest.raises(ValidationError):
        UserBuffers.model_validate(wrong)
