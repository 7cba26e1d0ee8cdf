"""Small values of an experiment: software, optimizer states, user buffers."""

from itertools import pairwise

import pytest
from pydantic import ValidationError

from harness.experiment.experiment import KernelSpec, OptimizerSpec
from harness.experiment.optimizer_states import host_state_bytes
from harness.experiment.software import Software, parse_assume
from harness.experiment.user_buffers import NAMED, UserBuffers
from harness.units import parse_version
from tests.commands import refused
from tests.engine import shapes

ASCENDING = ["0.16.0.dev0", "0.16.0a1", "0.16.0rc1.dev2", "0.16.0rc1", "0.16.0rc2", "0.16", "0.16.0.post1", "0.16.1",
             "0.20.0.dev0", "0.20.0", "1.0", "2.6.0dev0", "2.6", "2.11.0", "2.12"]  # fmt: skip


@pytest.mark.parametrize(("older", "newer"), list(pairwise(ASCENDING)))
def test_versions_are_ordered_as_pep_440_orders_them(older, newer):
    assert parse_version(older) < parse_version(newer)


@pytest.mark.train
@pytest.mark.parametrize(
    "text", ["0.16.1", "2.7.0.post1", "0.18.0rc2", "2.13.0+cpu", "v1.2", "1.0-beta.2", "0.20.0dev"]
)
@pytest.mark.parametrize("other", ["0.16.1", "2.7.0", "0.18", "2.13.0", "1.0", "0.20.0"])
def test_the_order_is_that_of_packaging(text, other):
    from packaging.version import Version

    assert (parse_version(text) < parse_version(other)) == (Version(text) < Version(other.partition("+")[0]))


def test_trailing_zeros_and_local_parts_do_not_count():
    assert parse_version("0.16.0") == parse_version("0.16") == parse_version("0.16.0+cu128")


@pytest.mark.parametrize("text", ["", "newest", "0.16.", "0.16.x"])
def test_text_that_is_no_version_is_refused(text):
    with pytest.raises(ValueError, match="version"):
        parse_version(text)


def test_assume_replaces_what_it_names_and_reports_every_part_that_is_wrong():
    installed = Software(megatron_core="0.16.1", torch="2.13.0", transformer_engine="2.11")
    assumed = parse_assume("megatron-core=0.19.2, transformer-engine=none,gpu=h100", installed)
    assert assumed == Software(megatron_core="0.19.2", torch="2.13.0", transformer_engine=None, gpu="h100")
    wrong = "mcore=0.19,gpu=h900,torch=new"
    refused(lambda: parse_assume(wrong, Software()), "'mcore'", "megatron-core", "'h900'", "'new'", num=None)


ON_HOST = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}


@pytest.mark.parametrize(
    ("num_gpus", "optimizer", "expected"),
    [
        (64, ON_HOST, 8 * 4 * (10**9 + 10**9 / 64)),  # copies of whole weights, before the states are there
        (2, ON_HOST, 2 * 16 * 10**9 / 2),
        (2, ON_HOST | {"optimizer_offload_fraction": 0.25}, 2 * 16 * 10**9 / 2 / 4),
        (2, {}, 0),
    ],
)
def test_a_node_holds_the_states_of_its_ranks(num_gpus, optimizer, expected):
    spec = shapes.experiment(shapes.DENSE, num_gpus=num_gpus).model_copy(
        update={"optimizer": OptimizerSpec(**optimizer)}
    )
    assert host_state_bytes(spec, 10**9, 0) == expected


H100_70B = "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"


def test_a_name_is_kept_as_its_buffers_so_that_a_record_says_them_all():
    kernels = KernelSpec.model_validate({"tp_comm_overlap_cfg": H100_70B})
    assert kernels.tp_comm_overlap_cfg == NAMED[H100_70B]
    assert KernelSpec.model_validate(kernels.model_dump()) == kernels
    assert KernelSpec.model_validate_json(kernels.model_dump_json()) == kernels


def test_transformer_engine_gets_every_named_buffer_with_its_settings_and_no_other():
    assert NAMED[H100_70B].ub_cfgs["fc2_fprop"] == {
        "method": "pipeline", "num_sm": 16, "cga_size": 2, "num_splits": 4, "set_sm_margin": True, "fp8_buf": False,
    }  # fmt: skip
    assert NAMED[H100_70B].ub_cfgs["qkv_wgrad"] == {
        "method": "bulk", "num_sm": 24, "cga_size": 2, "set_sm_margin": False,
    }  # fmt: skip
    assert all(len(buffers.ub_cfgs) == 10 for buffers in NAMED.values())
    assert list(UserBuffers.model_validate({"proj_fprop": {"method": "ring_exchange"}}).ub_cfgs) == ["proj_fprop"]


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
