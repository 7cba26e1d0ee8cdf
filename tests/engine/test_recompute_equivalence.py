"""Recompute changes memory, never the training: losses and gradients equal those without it, in every layout."""

from importlib.metadata import version

import pytest
import torch

from harness.experiment.experiment import PeftSpec
from harness.units import parse_version
from tests.engine import shapes

pytestmark = pytest.mark.train

FULL = ("full:uniform:1", "full:uniform:2", "full:block:1", "full:block:2")
DENSE_SETTINGS = ("core_attn", "layernorm", "mlp", "mlp,core_attn", "core_attn,layernorm,mlp", *FULL)
MOE_SETTINGS = ("core_attn", "layernorm", "moe", "moe,core_attn,layernorm", "full:uniform:1", "full:block:1")
DEEPSEEK_SETTINGS = (
    "core_attn", "layernorm", "mlp", "moe", "shared_experts", "mla_up_proj", "mla_up_proj,core_attn,shared_experts",
    "moe,shared_experts", "full:uniform:1",
)  # fmt: skip

LORA = PeftSpec(dim=8)
LORA_SETTINGS = ("core_attn", "mlp", "full:uniform:1", "full:block:2")

# Later releases run local experts one after the other, without it.
INERT = set() if parse_version(version("megatron-core")) < parse_version("0.17") else {("grouped", "moe_act")}

# For each layout: the model, its settings, the number of ranks, and the rest of the experiment.
LAYOUTS = {
    "dense": (shapes.DENSE, DENSE_SETTINGS, 1, {}),
    "dense_dropout": (shapes.DENSE, DENSE_SETTINGS, 1, {"dropout": 0.1, "attention": "unfused"}),
    "dense_bf16": (shapes.DENSE, ("core_attn", "layernorm", "mlp", "full:uniform:1"), 1, {"dtype": "bf16"}),
    "gpt3": (shapes.GPT3, ("core_attn", "layernorm", "full:uniform:1"), 1, {"attention": "unfused"}),
    "moe": (shapes.MIXTRAL, MOE_SETTINGS, 1, {}),
    "grouped": (shapes.GROUPED, ("moe_act", "moe_act,layernorm", "moe"), 1, {"dtype": "bf16", "seq": 512}),
    "deepseek": (shapes.DEEPSEEK, DEEPSEEK_SETTINGS, 1, {"attention": "unfused"}),
    "delta_nets": (shapes.QWEN3_NEXT.model_copy(update={"mtp_num_layers": None}), ("moe", "full:uniform:1"), 1, {}),
    "lora": (shapes.DENSE, LORA_SETTINGS, 1, {"peft": LORA}),
    "lora_tp2": (shapes.DENSE, LORA_SETTINGS, 2, {"peft": LORA, "tensor_model_parallel_size": 2}),
    "lora_pp2": (shapes.DENSE, LORA_SETTINGS, 2, {"peft": LORA, "pipeline_model_parallel_size": 2}),
    "lora_moe": (shapes.MIXTRAL, ("core_attn", "moe", "full:uniform:1"), 1, {"peft": LORA}),
    "dense_tp2": (shapes.DENSE, DENSE_SETTINGS, 2, {"tensor_model_parallel_size": 2}),
    "dense_tp2_distributed": (shapes.DENSE, ("full:uniform:1:distributed",), 2,
                              {"tensor_model_parallel_size": 2, "sequence_parallel": False}),
    "dense_pp2": (shapes.DENSE, DENSE_SETTINGS, 2, {"pipeline_model_parallel_size": 2}),
    "dense_vpp2": (shapes.DENSE, ("core_attn", "layernorm", "mlp", "full:uniform:1", "full:block:1"), 2,
                   {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}),
    "gpt3_pp2": (shapes.GPT3, ("layernorm", "full:uniform:1"), 2, {"pipeline_model_parallel_size": 2}),
    "moe_ep2": (shapes.MIXTRAL, MOE_SETTINGS, 2, {"expert_model_parallel_size": 2}),
    "moe_tp2": (shapes.MIXTRAL, ("moe", "layernorm", "full:uniform:1"), 2,
                {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2}),
    "moe_vpp2": (shapes.MIXTRAL, ("moe", "full:uniform:1"), 2,
                 {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}),
    "deepseek_pp2": (shapes.DEEPSEEK, ("core_attn", "moe", "mla_up_proj", "full:uniform:1"), 2,
                     {"pipeline_model_parallel_size": 2}),
    "deepseek_tp2": (shapes.DEEPSEEK, ("core_attn", "moe", "mla_up_proj", "full:uniform:1"), 2,
                     {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2}),
}  # fmt: skip
# Other layouts and models of settings that the rest has.
ONLY_SLOW = {
    "dense_bf16", "dense_vpp2", "gpt3", "gpt3_pp2", "moe", "moe_tp2", "moe_vpp2", "deepseek_pp2", "deepseek_tp2",
}  # fmt: skip


def parameters(pairs):
    return [pytest.param(*pair, marks=[pytest.mark.long] if pair[0] in ONLY_SLOW else []) for pair in pairs]


CASES = parameters((layout, setting) for layout, (_, settings, _, _) in LAYOUTS.items() for setting in settings)

# Peak memory must fall where the setting drops what the peak is made of. With flash-like attention core_attn keeps
# its inputs and its output, so it frees nothing to speak of; norms and activations of these small models are close
# to the noise of kernel temporaries.
MUST_LOWER_THE_PEAK = {
    ("dense", "mlp"), ("dense", "layernorm"), ("dense", "full:uniform:1"), ("dense", "full:block:2"),
    ("dense_dropout", "core_attn"), ("dense_dropout", "mlp,core_attn"), ("gpt3", "core_attn"), ("gpt3", "full:uniform:1"),
    ("moe", "moe"), ("moe", "full:uniform:1"), ("grouped", "moe_act"), ("grouped", "moe"),
    ("deepseek", "core_attn"), ("deepseek", "moe"), ("deepseek", "full:uniform:1"),
    ("lora", "mlp"), ("lora", "full:uniform:1"), ("dense_pp2", "mlp"), ("dense_pp2", "full:uniform:1"), ("dense_vpp2", "full:uniform:1"), ("dense_tp2", "mlp"),
    ("dense_tp2", "full:uniform:1"), ("moe_ep2", "moe"), ("moe_vpp2", "full:uniform:1"),
} - INERT  # fmt: skip


def specs_of(layout):
    """Two micro-batches of each copy of the model: gradients add up, and of a pipeline every phase takes place."""
    model, settings, num_ranks, rest = LAYOUTS[layout]
    asked = {setting: shapes.experiment(model, setting, num_gpus=num_ranks, **rest) for setting in ("none", *settings)}
    return {
        f"{layout}.{setting}": spec.model_copy(
            update={"batch": spec.batch.model_copy(update={"global_batch_size": 2 * spec.data_parallel_size})}
        )
        for setting, spec in asked.items()
    }


# Watching memory takes longer than the step, so only these are watched.
WATCHED = {f"{layout}.{setting}" for layout, lower in MUST_LOWER_THE_PEAK for setting in ("none", lower)}


@pytest.fixture(scope="module")
def trained(train_cases, request):
    left_out = set() if request.config.getoption("--slow") else ONLY_SLOW
    out = {}
    for num_ranks in (1, 2):
        specs = {}
        for layout, (_, _, ranks, _) in LAYOUTS.items():
            if ranks == num_ranks and layout not in left_out:
                specs |= specs_of(layout)
        out |= train_cases(specs, num_ranks, WATCHED)
    return out


def only_sums_reordered(layout, setting):
    """Where one fp32 sum is accumulated in another order; everything else is equal to the bit."""
    return "layernorm" in setting or (layout.startswith("deepseek") and "core_attn" in setting)


@pytest.mark.parametrize(("layout", "setting"), CASES)
def test_losses_and_gradients_are_those_without_recompute(trained, layout, setting):
    control, run = trained[f"{layout}.none"], trained[f"{layout}.{setting}"]
    expected, actual = control.gradients(), run.gradients()
    assert control.losses == run.losses
    assert expected.keys() == actual.keys()
    assert len(expected) > 10
    learns = (".adapter.linear_in.weight", ".adapter.linear_out.weight") if "lora" in layout else ("fc1.weight",)
    assert all(gradient.abs().sum() > 0 for name, gradient in expected.items() if name.endswith(learns))
    assert "lora" not in layout or all(".adapter." in name for name in expected)
    for name, gradient in expected.items():
        if only_sums_reordered(layout, setting):
            torch.testing.assert_close(actual[name], gradient, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(actual[name], gradient), name


@pytest.mark.parametrize(("layout", "setting"), parameters(sorted(MUST_LOWER_THE_PEAK)))
def test_the_peak_falls_where_it_must(trained, layout, setting):
    control, run = trained[f"{layout}.none"], trained[f"{layout}.{setting}"]
    assert max(run.peaks) < max(control.peaks)


@pytest.mark.parametrize(
    ("split", "whole"),
    parameters([("dense_pp2", "dense"), ("lora_pp2", "lora"), ("dense_vpp2", "dense"), ("moe_vpp2", "moe")]),
)
@pytest.mark.parametrize("setting", ["none", "full:uniform:1"])
def test_pipeline_gradients_equal_those_of_one_stage_to_the_bit(trained, split, whole, setting):
    expected, actual = trained[f"{whole}.{setting}"].gradients(), trained[f"{split}.{setting}"].gradients()
    assert expected.keys() == actual.keys()
    assert [name for name, gradient in expected.items() if not torch.equal(gradient, actual[name])] == []
    assert trained[f"{split}.{setting}"].losses == trained[f"{whole}.{setting}"].losses


@pytest.mark.parametrize(("layout", "setting"), CASES)
def test_the_built_layers_carry_what_was_asked(trained, layout, setting):
    layers = trained[f"{layout}.{setting}"].layers
    total = sum(rank["num_layers"] for rank in layers)
    if LAYOUTS[layout][3].get("pipeline_model_parallel_size", 1) == 1:
        total //= LAYOUTS[layout][2]
    assert total == 4
    if setting.startswith("full"):
        assert all(rank["full_layers"] > 0 and rank["modules"] == {} for rank in layers)
    else:
        acting = set().union(*(rank["modules"] for rank in layers))
        assert acting == {module for module in setting.split(",") if (layout, module) not in INERT}
