"""Model and recompute FLOPs against numbers of Megatron-Bridge, Megatron-LM and torch's own counter."""

import json
from pathlib import Path

import pytest

from harness.experiment.effective import effective_recompute
from harness.experiment.flops import layer_flops, model_flops_per_step, recompute_flops_per_step
from harness.experiment.model import ModelSpec

REFERENCE = json.loads((Path(__file__).parents[1] / "data/flops/model_flops.json").read_text())
CASES = [pytest.param(case, id=f"{case['model']}-{case['seq_length']}") for case in REFERENCE["cases"]]


def spec_of(make_spec, name, *, seq_length=4096, samples=1, recompute="none", **changes):
    batch = {"micro_batch_size": 1, "global_batch_size": samples, "seq_length": seq_length}
    fields = {"num_gpus": 1, "parallelism": {}} | changes
    model = ModelSpec.model_validate_json(json.dumps(REFERENCE["models"][name]))
    return make_spec(model=model, batch=batch, recompute=recompute, **fields)


def recomputed(spec):
    return recompute_flops_per_step(spec, effective_recompute(spec, "transformer_engine"))


@pytest.mark.parametrize("case", CASES)
def test_model_flops_equal_the_reference_to_the_last_digit(make_spec, case):
    spec = spec_of(make_spec, case["model"], seq_length=case["seq_length"])
    assert spec.model.padded_vocab_size(1) == case["padded_vocab_size"]
    assert model_flops_per_step(spec) == case["flops"]


def test_the_vocabulary_is_padded_to_the_tensor_parallel_size(make_spec):
    one = spec_of(make_spec, "gpt3_175b")
    eight = spec_of(make_spec, "gpt3_175b", num_gpus=8, parallelism={"tensor_model_parallel_size": 8})
    more_columns = eight.model.padded_vocab_size(8) - one.model.padded_vocab_size(1)
    assert (one.model.padded_vocab_size(1), eight.model.padded_vocab_size(8)) == (50304, 51200)
    assert model_flops_per_step(eight) - model_flops_per_step(one) == 6 * 4096 * 12288 * more_columns


def test_flops_of_the_cpu_recipe_equal_what_torch_counted(make_spec):
    """57 982 058 496 FLOPs counted by torch.utils.flop_counter, which sees the whole score matrix: we count half."""
    model = {
        "num_layers": 8, "hidden_size": 256, "ffn_hidden_size": 896, "num_attention_heads": 8, "num_query_groups": 2,
        "vocab_size": 2048,
    }  # fmt: skip
    batch = {"micro_batch_size": 2, "global_batch_size": 2, "seq_length": 512}
    spec = make_spec(gpu="cpu", num_gpus=1, model=model, batch=batch)
    causal_half = 3 * 8 * 2 * 512 * 512 * (2 * 256)
    assert model_flops_per_step(spec) + causal_half == 57_982_058_496


@pytest.mark.parametrize("name", ["llama3_8b", "mixtral_8x7b", "deepseek_v3_no_mtp", "moonlight_16b"])
@pytest.mark.parametrize("recompute", ["full:uniform:1", "full:block:1000"])
def test_full_recompute_of_all_layers_is_a_third_of_all_but_the_logits(make_spec, name, recompute):
    spec = spec_of(make_spec, name, recompute=recompute)
    logits = 6 * 4096 * spec.model.hidden_size * spec.model.padded_vocab_size(1)
    assert 3 * recomputed(spec) == model_flops_per_step(spec) - logits


def test_block_recompute_counts_the_first_layers_of_every_chunk(make_spec):
    """DeepSeek-V3's first three layers are dense: stage 0 recomputes two of those, stage 1 two MoE layers.

    As published, a dense layer (18432) and an MoE layer (9 x 2048) cost the same; here the dense one is wider.
    """
    parallelism = {"pipeline_model_parallel_size": 2, "num_layers_in_first_pipeline_stage": 30}
    spec = spec_of(make_spec, "deepseek_v3_no_mtp", recompute="full:block:2", num_gpus=2, parallelism=parallelism)
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"ffn_hidden_size": 20000})})
    dense, moe = layer_flops(spec, "dense"), layer_flops(spec, "moe")
    assert recomputed(spec) == 2 * dense.total + 2 * moe.total


def test_selective_recompute_counts_the_named_part_of_every_layer(make_spec):
    """Llama3-8B at 4096: 32 layers, 3 x 4096 x 14336 weights; scores and context 2 x 4096 channels, causal."""
    mlp = 2 * 4096 * 32 * 3 * 4096 * 14336
    core_attn = 2 * 4096 * 4096 * 32 * 4096
    assert recomputed(spec_of(make_spec, "llama3_8b", recompute="mlp")) == mlp
    assert recomputed(spec_of(make_spec, "llama3_8b", recompute="core_attn")) == core_attn
    assert recomputed(spec_of(make_spec, "llama3_8b", recompute="mlp,core_attn")) == mlp + core_attn
    assert recomputed(spec_of(make_spec, "llama3_8b", recompute="none")) == 0


@pytest.mark.parametrize(
    ("name", "module"), [("mixtral_8x7b", "mlp"), ("llama3_8b", "moe"), ("llama3_8b", "layernorm")]
)
def test_an_inert_module_costs_nothing(make_spec, name, module):
    assert recomputed(spec_of(make_spec, name, recompute=module)) == 0


def test_moe_recompute_is_routed_and_shared_experts_and_nesting_adds_up(make_spec):
    """DeepSeek-V3: 58 MoE layers, 8 routed experts and 1 shared of 2048."""
    per_expert = 2 * 4096 * 58 * 3 * 7168 * 2048
    name = "deepseek_v3_no_mtp"
    assert recomputed(spec_of(make_spec, name, recompute="moe")) == 9 * per_expert
    assert recomputed(spec_of(make_spec, name, recompute="shared_experts")) == per_expert
    assert recomputed(spec_of(make_spec, name, recompute="moe,shared_experts")) == 10 * per_expert


def test_mla_up_projections_are_those_from_the_latents(make_spec):
    """Query 1536 -> 128 x 192 and key-value 512 -> 128 x 256, in each of 61 layers and the MTP layer."""
    per_layer = 2 * 4096 * (1536 * 128 * 192 + 512 * 128 * 256)
    assert recomputed(spec_of(make_spec, "deepseek_v3_no_mtp", recompute="mla_up_proj")) == 61 * per_layer
    assert recomputed(spec_of(make_spec, "deepseek_v3", recompute="mla_up_proj")) == 62 * per_layer
