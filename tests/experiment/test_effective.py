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


IN_GRAPH = {"graph": "full_iteration", "capacity": 1.0, "pad": True}
EFFECTS = [  # the kind of request, its recompute, other changes, the release, and the layers on which modules act
    ("cpu", "layernorm", {}, "0.16.1", {"layernorm": 8}),
    ("deepseek", "mlp,moe", {"mtp": 1}, "0.16.1", {"mlp": 1, "moe": 8}),  # MTP layers are of the last kind
    ("qwen3-next", "core_attn,gdn_norm_out,layernorm", {"mtp": 1}, "0.19.2",
     {"core_attn": 3, "gdn_norm_out": 6, "layernorm": 9}),
    ("qwen3-next", "gdn_norm_out", {}, "0.16.1", {}),  # delta nets have the module from 0.19 on
    ("qwen3-next", "core_attn", {"model__linear_attention__linear_attention_freq": 9}, "0.16.1", {}),
    ("moe", "moe_act", {"model__moe__moe_grouped_gemm": False}, "0.16.1", {}),
    ("moe", "moe_act", {"impl": "local"}, "0.16.1", {"moe_act": 8}),
    ("moe", "moe_act", {"impl": "local"}, "0.18.0", {}),
    ("moe", "moe", IN_GRAPH | {"graph": "local"}, "0.16.1", {}),
    ("moe", "moe", IN_GRAPH, "0.16.1", {}),
    ("moe", "moe", IN_GRAPH, "0.18.0", {"moe": 8}),
    ("moe", "moe", {"overlap": True, "ep": 2}, "0.16.1", {}),
    ("deepseek", "mla_up_proj", {"graph": "local"}, "0.16.1", {}),  # 0.16 loses it after the capture
    ("deepseek", "mla_up_proj", {"graph": "local"}, "0.18.0", {"mla_up_proj": 8}),
    ("dense", "mlp", {"graph": "transformer_engine", "dtype": "fp8_cs"}, "0.18.0", {"mlp": 8}),
    ("moe", "layernorm", {"graph": "transformer_engine", "scope": ("attn", "moe_router")}, "0.16.1", {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "recompute", "changes", "release", "modules"), EFFECTS)
def test_a_module_acts_where_the_release_and_the_settings_let_it(
    kind, recompute, changes, release, modules, request_for
):
    software = Software(megatron_core=release, transformer_engine="2.12")
    found = effect(request_for(kind, recompute=recompute, **changes), software)
    assert (found.modules, found.does_nothing) == (modules, not modules)


def test_inert_modules_are_named_with_the_reason(request_for):
    found = effect(request_for("moe", recompute="mlp,moe_act,shared_experts"))
    assert found.modules == {"moe_act": EVERY_LAYER}
    assert found.inert_modules.keys() == {"mlp", "shared_experts"}
    assert "dense" in found.inert_modules["mlp"] and "MoE" in found.inert_modules["shared_experts"]
    assert not found.does_nothing


def test_nothing_in_effect_is_distinguished_from_nothing_asked(request_for):
    assert effect(request_for("dense", recompute="layernorm")).does_nothing
    assert not effect(request_for("dense")).does_nothing


def test_from_0_18_on_checkpoints_inside_a_captured_region_are_left_out(request_for):
    inside = request_for("dense", recompute="mlp,core_attn", graph="transformer_engine", scope=("mlp",))
    found = effect(inside, MCORE_018)
    assert found.modules == {"core_attn": EVERY_LAYER}
    assert found.inert_modules.keys() == {"mlp"} and "CUDA graph" in found.inert_modules["mlp"]


def test_modules_inside_moe_act(request_for):
    assert effect(request_for("deepseek", recompute="moe,shared_experts")).modules == {"moe": 7, "shared_experts": 7}


@pytest.mark.parametrize(
    ("changes", "full_layers"),
    [
        ({"vp": 2, "recompute": "full:uniform:2"}, 2 + 2 + 2 + 2),
        ({"vp": 2, "recompute": "full:block:1"}, 1 + 1 + 1 + 1),
        ({"layers": 7, "recompute": "full:block:4", "parallelism__account_for_loss_in_pipeline_split": True}, 4 + 3),
    ],
)
def test_full_recompute_counts_layers_per_model_chunk(changes, full_layers, request_for):
    assert effect(request_for("dense", pp=2, **changes)).full_layers == full_layers


def test_block_leaves_mtp_layers_alone(request_for):
    assert effect(request_for("dense", mtp=1, recompute="full:block:8")).full_layers == 8


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
