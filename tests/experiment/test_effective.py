import pytest

from harness.experiment.effective import computation, effective_recompute, settled_implementation
from harness.experiment.software import Software

MCORE_016 = Software(megatron_core="0.16.1", transformer_engine="2.11")
MCORE_018 = Software(megatron_core="0.18.0", transformer_engine="2.12")
EVERY_LAYER = 8


def effect(spec, software=MCORE_016):
    return effective_recompute(spec, settled_implementation(spec), software)


# Layers that each module acts on, of 8: dense / all MoE / one dense and seven MoE layers with MLA and shared experts.
WITH_TE = {
    "core_attn": (8, 8, 8), "layernorm": (0, 8, 8), "mlp": (8, 0, 1), "moe": (0, 8, 7), "moe_act": (0, 8, 7),
    "shared_experts": (0, 0, 7), "mla_up_proj": (0, 0, 8), "gdn_norm_out": (0, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("module", WITH_TE)
def test_modules_act_where_the_transformer_engine_layers_have_them(module, request_for):
    software = Software(megatron_core="0.19.0", transformer_engine="2.12")
    counts = tuple(
        effect(request_for(kind, recompute=module), software).modules.get(module, 0)
        for kind in ("dense", "moe", "deepseek")
    )
    assert counts == WITH_TE[module]


def test_the_local_layers_have_norms_of_their_own(request_for):
    assert effect(request_for("cpu", recompute="layernorm")).modules == {"layernorm": EVERY_LAYER}


def test_inert_modules_are_named_with_the_reason(request_for):
    found = effect(request_for("moe", recompute="mlp,moe_act,shared_experts"))
    assert found.modules == {"moe_act": EVERY_LAYER}
    assert found.inert_modules == {
        "mlp": "every layer is an MoE layer; mlp covers dense layers only",
        "shared_experts": "the MoE layers have no shared experts",
    }
    assert not found.does_nothing


def test_nothing_in_effect_is_distinguished_from_nothing_asked(request_for):
    assert effect(request_for("dense", recompute="layernorm")).does_nothing
    assert not effect(request_for("dense")).does_nothing


def test_mtp_layers_count_as_layers_of_the_last_kind(request_for):
    found = effect(request_for("deepseek", recompute="mlp,moe", mtp=1))
    assert (found.num_layers, found.modules) == (9, {"mlp": 1, "moe": 8})


MCORE_019 = Software(megatron_core="0.19.2", transformer_engine="2.12")


def test_modules_of_attention_act_on_attention_and_those_of_delta_nets_on_delta_nets(request_for):
    found = effect(request_for("qwen3-next", recompute="core_attn,gdn_norm_out,layernorm", mtp=1), MCORE_019)
    assert (found.num_layers, found.modules) == (9, {"core_attn": 3, "gdn_norm_out": 6, "layernorm": 9})


def test_delta_nets_have_no_norm_module_before_0_19(request_for):
    found = effect(request_for("qwen3-next", recompute="gdn_norm_out"))
    assert found.inert_modules == {"gdn_norm_out": "this megatron-core has no such module"}


def test_core_attn_has_nothing_to_do_without_attention(request_for):
    spec = request_for("qwen3-next", recompute="core_attn", model__linear_attention__linear_attention_freq=9)
    assert effect(spec).inert_modules == {"core_attn": "every layer has a gated delta net in place of attention"}


def test_moe_act_needs_grouped_experts(request_for):
    found = effect(request_for("moe", recompute="moe_act", model__moe__moe_grouped_gemm=False))
    assert found.inert_modules == {"moe_act": "only grouped GEMM experts have it; moe_grouped_gemm is off"}


def test_local_experts_have_no_moe_act_from_0_17_on(request_for):
    spec = request_for("moe", recompute="moe_act", impl="local")
    assert effective_recompute(spec, "local").modules == {"moe_act": EVERY_LAYER}
    assert effective_recompute(spec, "local", MCORE_018).does_nothing


@pytest.mark.parametrize("graph", ["local", "full_iteration"])
def test_local_graphs_switch_moe_off_in_0_16(graph, request_for):
    spec = request_for("moe", recompute="moe", graph=graph, capacity=1.0, pad=True)
    assert effect(spec).does_nothing


def test_a_captured_iteration_keeps_moe_from_0_18_on(request_for):
    spec = request_for("moe", recompute="moe", graph="full_iteration", capacity=1.0, pad=True)
    assert effect(spec, MCORE_018).modules == {"moe": EVERY_LAYER}


def test_the_overlap_schedule_bypasses_moe(request_for):
    assert effect(request_for("moe", recompute="moe", overlap=True, ep=2)).does_nothing


def test_0_16_loses_output_discarding_modules_after_local_capture_and_0_18_does_not(request_for):
    spec = request_for("deepseek", recompute="mla_up_proj", graph="local")
    assert effect(spec).does_nothing
    assert effect(spec, MCORE_018).modules == {"mla_up_proj": EVERY_LAYER}


def test_from_0_18_on_checkpoints_inside_a_captured_region_are_left_out(request_for):
    inside = request_for("dense", recompute="mlp,core_attn", graph="transformer_engine", scope=("mlp",))
    found = effect(inside, MCORE_018)
    assert found.modules == {"core_attn": EVERY_LAYER}
    assert found.inert_modules == {"mlp": "megatron-core runs no checkpoint while a CUDA graph is captured"}


def test_transformer_engine_checkpoints_under_fp8_run_inside_graphs(request_for):
    spec = request_for("dense", recompute="mlp", graph="transformer_engine", dtype="fp8_cs")
    assert effect(spec, MCORE_018).modules == {"mlp": EVERY_LAYER}


def test_the_router_graph_keeps_the_pre_mlp_norm(request_for):
    spec = request_for("moe", recompute="layernorm", graph="transformer_engine", scope=("attn", "moe_router"))
    assert effect(spec).does_nothing


def test_core_attn_with_flash_attention_acts_and_is_noted(request_for):
    found = effect(request_for("dense", recompute="core_attn"))
    assert found.modules == {"core_attn": EVERY_LAYER}
    assert found.notes == (
        "core_attn: flash and fused attention save no scores, so this frees nothing: it keeps the QKV projection alive and "
        "costs memory",
    )
    assert effect(request_for("dense", recompute="core_attn", kernels__attention_backend="unfused")).notes == ()


def test_modules_inside_moe_act_and_are_noted(request_for):
    found = effect(request_for("deepseek", recompute="moe,shared_experts"))
    assert found.modules == {"moe": 7, "shared_experts": 7}
    assert found.notes == ("shared_experts: is inside moe, so it runs a third time and frees no more memory",)


def test_uniform_recomputes_every_layer_of_every_chunk(request_for):
    found = effect(request_for("dense", pp=2, vp=2, recompute="full:uniform:2"))
    assert (found.full_layers, found.full_layers_of_chunk) == (8, ((2, 2), (2, 2)))


def test_block_counts_per_model_chunk(request_for):
    found = effect(request_for("dense", pp=2, vp=2, recompute="full:block:1"))
    assert (found.full_layers, found.full_layers_of_chunk) == (4, ((1, 1), (1, 1)))


def test_block_is_clamped_in_a_short_chunk(request_for):
    spec = request_for("dense", pp=2, layers=7, recompute="full:block:4",
                       parallelism__account_for_loss_in_pipeline_split=True)  # fmt: skip
    assert effect(spec).full_layers_of_chunk == ((4,), (3,))


def test_block_leaves_mtp_layers_alone(request_for):
    found = effect(request_for("dense", mtp=1, recompute="full:block:8"))
    assert found.full_layers == 8
    assert found.notes == ("MTP layers are not recomputed: megatron-core has no block recompute for them",)


@pytest.mark.parametrize(
    ("kind", "a", "b", "equal"),
    [
        ("dense", "mlp,core_attn", "core_attn,mlp", True),
        ("dense", "mlp,layernorm", "mlp", True),
        ("dense", "layernorm", "none", True),
        ("dense", "mlp", "core_attn", False),
        ("dense", "full:block:8", "full:block:9", True),
        ("dense", "full:block:8", "full:uniform:1", True),
        ("dense", "full:uniform:2", "full:uniform:1", False),
        ("dense", "full:block:7", "full:block:8", False),
        ("dense", "full:uniform:1", "mlp", False),
        ("deepseek", "moe,shared_experts", "moe", False),
    ],
)
def test_settings_are_compared_by_what_they_do(kind, a, b, equal, request_for):
    assert (computation(request_for(kind, recompute=a)) == computation(request_for(kind, recompute=b))) is equal


def test_a_block_over_all_layers_differs_from_uniform_where_mtp_layers_exist(request_for):
    block, uniform = (request_for("dense", mtp=1, recompute=r) for r in ("full:block:8", "full:uniform:1"))
    assert computation(block) != computation(uniform)
