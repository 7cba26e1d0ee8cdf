"""Memory beside tensors: workspaces by hand, and NCCL, DeepEP and a job on 64 H100 as others measured them."""

import pytest

from harness.predict.allocator_settings import AllocatorSettings
from harness.predict.device import Communicator, communicators, device_needs, dispatcher_bytes
from harness.predict.ledger import user_buffer_bytes, workspace_bytes
from harness.predict.reserved import ratios_of
from harness.units import GIB, MIB

# DeepSeek-V3's shape with 14 layers on 64 H100 (NVIDIA/Megatron-LM pull request 6429): MiB of tensors, reserved, in use.
MEASURED = {"overlap": (60378, 68392, 74803), "no overlap": (60154, 62570, 68973)}
EXPERTS = {"num_moe_experts": 256, "moe_router_topk": 8, "moe_ffn_hidden_size": 2048, "moe_router_enable_expert_bias": True,
           "moe_router_score_function": "sigmoid", "moe_router_load_balancing_type": "seq_aux_loss"}  # fmt: skip


@pytest.fixture
def deepseek(make_spec):
    """The measured job, with these kernels."""

    def make(**kernels):
        return make_spec(
            gpu="h100", compute_dtype="bf16", num_gpus=64, gpus_per_node=8,
            model={"num_layers": 14, "hidden_size": 7168, "ffn_hidden_size": 18432, "num_attention_heads": 128, "vocab_size": 129280,
                   "num_query_groups": None, "mtp_num_layers": 1, "share_embeddings_and_output_weights": False, "moe": EXPERTS},
            parallelism={"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2, "expert_model_parallel_size": 16,
                         "pipeline_model_parallel_layout": "Ett|tt|tt|tt|tt|tt|tt|mL"},
            batch={"micro_batch_size": 1, "seq_length": 2048, "global_batch_size": 256},
            kernels={"moe_token_dispatcher_type": "alltoall"} | kernels,
        )  # fmt: skip

    return make


@pytest.mark.parametrize(("num_ranks", "measured_mib"), [(2, 544), (4, 688)])
def test_a_communicator_of_a100_takes_what_was_measured(make_spec, num_ranks, measured_mib):
    spec = make_spec(gpu="a100", compute_dtype="bf16", num_gpus=4, gpus_per_node=4)
    assert Communicator("any", num_ranks, 1).num_bytes(spec) == measured_mib * MIB


def test_an_all_to_all_inside_a_node_connects_every_pair_by_32_channels(make_spec):
    # NVIDIA/nccl issue 1685: 1.06 GB before and 4.34 GB after the first all-to-all over eight H100, which used no ring and tree
    spec = make_spec(gpu="h100", compute_dtype="bf16", num_gpus=8, gpus_per_node=8)
    every = Communicator("expert parallel", 8, 1, "all-to-all").num_bytes(spec)
    collectives = Communicator("any", 8, 1).num_bytes(spec) - 256 * MIB
    assert (every - collectives) / 1e9 == pytest.approx(4.34 - 1.06, rel=0.07)


@pytest.mark.parametrize(("name", "overlaps"), [("overlap", True), ("no overlap", False)])
def test_a_job_on_64_gpus_uses_what_was_measured_within_1_per_cent(deepseek, name, overlaps):
    tensors, reserved, in_use = (size * MIB for size in MEASURED[name])
    spec = deepseek(overlap_moe_expert_parallel_comm=overlaps)
    needs, ratios = device_needs(spec), ratios_of(spec, tensors, AllocatorSettings(expandable_segments=True))
    assert ratios.reserved[0] <= reserved / tensors <= ratios.reserved[2] + 0.005
    assert needs.outside_bytes == pytest.approx(in_use - reserved, rel=0.06)


def test_tensors_that_made_the_allocator_thrash_do_not_fit(deepseek):
    def used(spec, tensors):
        ratios = ratios_of(spec, tensors, AllocatorSettings(expandable_segments=True))
        return tensors * ratios.reserved[1] + device_needs(spec).outside_bytes

    assert used(deepseek(overlap_moe_expert_parallel_comm=True), 70279 * MIB) > 79.2 * GIB
    # without overlap the same job ran at full speed with 68,704 MiB
    assert used(deepseek(), 68704 * MIB) < 79.2 * GIB


def test_groups_are_those_that_a_step_uses(deepseek, make_spec):
    names = [(group.name, group.size, group.stride) for group in communicators(deepseek())]
    assert names == [
        ("world", 64, 1), ("gradient norm", 64, 1), ("data parallel", 16, 1), ("model parallel", 4, 16),
        ("previous stage", 2, 16), ("next stage", 2, 16), ("embedding", 2, 48), ("expert parallel", 16, 1), ("tokens per expert", 16, 1),
        ("losses of all stages", 4, 16), ("losses of all copies", 16, 1), ("routing of a stage", 16, 1),
    ]  # fmt: skip
    assert communicators(make_spec(gpu="cpu")) == ()


@pytest.mark.parametrize(("kind", "traffic"), [("p2p", "neighbours"), ("a2a", "all-to-all")])
def test_context_parallel_ranks_connect_as_they_communicate(make_spec, kind, traffic):
    groups = communicators(make_spec(parallelism={"context_parallel_size": 2, "cp_comm_type": kind}))
    assert [group.traffic for group in groups if group.name == "context parallel"] == [traffic]


def test_deepep_buffers_grow_with_the_group(deepseek):
    flex = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    token = 2 * 7168 + 128 * 16 + 8
    assert dispatcher_bytes(deepseek(**flex)) == 10 * 8 * 288 * token + 2 * 10 * 2 * 128 * token
    assert dispatcher_bytes(deepseek()) == 0


def test_hybridep_keeps_room_for_all_tokens_of_the_group(deepseek):
    hybrid = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
    received = 2048 * 16 * (2 * 7168 + 4 * 128)
    assert dispatcher_bytes(deepseek(**hybrid)) == received + 4 * 2048 * 7168 * 2


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
