"""Reading the config.json of Hugging Face models: values, defaults of the config classes, and what is refused by name."""

import json
from pathlib import Path

import pytest
import yaml

from harness.foreign.hf import ARCHITECTURES
from harness.recipes.rows import full_size
from harness.resolve.find import open_recipe
from harness.resolve.recipe import ForeignSource, Request
from harness.resolve.resolve import resolve
from tests.commands import refused

PARAMETERS = json.loads((Path(__file__).parents[1] / "data" / "hf_parameters.json").read_text())
CONFIGS = Path(__file__).parents[2] / "scripts" / "audit-bridge-recipes.d" / "model_configs.yaml"
SHIPPED = {
    "meta-llama/Meta-Llama-3-8B": "llama3_8b", "meta-llama/Meta-Llama-3-70B": "llama3_70b",
    "meta-llama/Meta-Llama-3.1-405B": "llama31_405b", "meta-llama/Llama-2-7b-hf": "llama2_7b",
    "Qwen/Qwen3-30B-A3B": "qwen3_30b_a3b", "Qwen/Qwen3-235B-A22B": "qwen3_235b_a22b", "deepseek-ai/DeepSeek-V3": "deepseek_v3",
}  # fmt: skip
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "vocab_size": 1000, "rope_theta": 5e5, "rms_norm_eps": 1e-05,
}  # fmt: skip

LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def published(name):
    """The published configuration of a model, as the audit of recipes keeps it."""
    kept = yaml.safe_load(CONFIGS.read_text())
    own = dict(kept["models"][name])
    return kept["shared"][own.pop("like")] | own


@pytest.fixture
def resolved(tmp_path):
    """What a configuration, or a text, resolves to."""

    def resolving(values, **asked):
        path = tmp_path / "config.json"
        path.write_text(values if isinstance(values, str) else json.dumps(values))
        request = {"gpu": "h100", "num_gpus": 8} | asked
        return resolve(Request(model_recipe_name="", source=ForeignSource("hf", str(tmp_path)), **request))

    return resolving


@pytest.fixture
def model(resolved):
    return lambda values: resolved(values).spec.model


@pytest.mark.parametrize("name", SHIPPED)
def test_a_published_model_is_that_of_the_shipped_recipe(model, name):
    ours, theirs = full_size(open_recipe(SHIPPED[name], None, None)).model, model(published(name))
    # Choices of performance recipes, and a weight that revisions of the public file differ in
    loose = {"moe_router_force_load_balancing": False, "moe_aux_loss_coeff": 0.0}
    changed = {"moe": ours.moe and ours.moe.model_copy(update=loose), "num_query_groups": ours.query_groups}
    if ours.mla:
        changed |= {"mla": ours.mla.model_copy(update={"apply_rope_fusion": False}), "kv_channels": None,
                    "num_query_groups": None}  # fmt: skip
    found = theirs.model_copy(update={"moe": theirs.moe and theirs.moe.model_copy(update=loose)})
    assert found == ours.model_copy(update=changed)


def test_absent_keys_have_the_defaults_of_the_config_class_of_the_model(model):
    llama = model(LLAMA)
    assert (llama.num_query_groups, llama.kv_channels, llama.rotary_base, llama.add_qkv_bias) == (
        8,
        None,
        500000,
        False,
    )
    qwen = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 4}
    qwen3, qwen2 = model(qwen), model(qwen | {"architectures": ["Qwen2ForCausalLM"]})
    assert (qwen3.kv_channels, qwen3.qk_layernorm, qwen3.add_qkv_bias) == (128, True, False)
    assert (qwen2.kv_channels, qwen2.qk_layernorm, qwen2.add_qkv_bias) == (None, False, True)
    mixtral = model(LLAMA | {"architectures": ["MixtralForCausalLM"]})
    assert (mixtral.num_query_groups, mixtral.moe.num_moe_experts, mixtral.moe.moe_router_topk) == (8, 8, 2)
    assert not mixtral.window_size
    assert model(LLAMA | {"architectures": ["MistralForCausalLM"]}).window_size == (4095, 0)


def test_every_setting_names_its_key_and_whether_the_file_has_it(resolved):
    sources = resolved(LLAMA).sources
    assert sources["model.hidden_size"].endswith("/config.json: hidden_size")
    assert sources["model.num_query_groups"].endswith(
        "config.json: num_key_value_heads (absent: default of LlamaConfig)"
    )


def test_the_vocabulary_is_padded_as_bridge_pads_it(model):
    assert model(LLAMA).make_vocab_size_divisible_by == 8  # 1000 = 8 * 125
    assert model(LLAMA | {"vocab_size": 151936}).make_vocab_size_divisible_by == 128
    assert model(published("deepseek-ai/DeepSeek-V3")).make_vocab_size_divisible_by == 1280


def test_the_step_around_the_model_is_usual_and_noted_until_an_option_sets_it(resolved):
    found = resolved(LLAMA, num_gpus=48)
    assert (found.spec.batch.micro_batch_size, found.spec.batch.global_batch_size) == (1, 144)
    assert (found.spec.batch.seq_length, found.spec.compute_dtype) == (2048, "bf16")
    assert "assumed: bf16, micro 1, global 144, 2048 tokens; change with -c -mb -gb -sl" in found.notes
    asked = resolved(
        LLAMA, num_gpus=48, global_batch_size=96, seq_length=512, micro_batch_size=2, compute_dtype="fp8_cs"
    )
    assert (asked.spec.batch.global_batch_size, asked.spec.compute_dtype) == (96, "fp8_cs")
    assert not [note for note in asked.notes if "assumed" in note]


def test_a_vocabulary_that_the_file_leaves_open_is_among_what_is_assumed(resolved):
    open_size = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
    (note,) = (note for note in resolved(open_size, num_gpus=48).notes if note.startswith("assumed: "))
    assert "vocab_size 32000" in note
    assert "--set model.vocab_size=N" in note
    asked = resolved(open_size, num_gpus=48, set_values=("model.vocab_size=1000",))
    assert not any("vocab_size" in text for text in asked.notes)


def test_on_a_cpu_the_step_uses_no_kernel_of_a_gpu(resolved):
    spec = resolved(LLAMA | {"architectures": ["MixtralForCausalLM"]}, gpu="cpu", num_gpus=1).spec
    assert (spec.compute_dtype, spec.kernels.gradient_accumulation_fusion, spec.model.moe.moe_grouped_gemm) == (
        "fp32", False, False,
    )  # fmt: skip


def test_gpt_oss_has_windows_sinks_and_clamped_experts(resolved):
    values = {"architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4"},
              "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}}  # fmt: skip
    spec = resolved(values).spec
    model = spec.model
    assert (model.window_size, model.window_attn_skip_freq, model.softmax_type) == ((127, 0), 2, "learnable")
    assert (model.activation_func, model.activation_func_clamp_value, model.glu_linear_offset) == (
        "quick_gelu",
        7.0,
        1.0,
    )
    assert (model.add_bias_linear, model.yarn.yarn_rotary_scaling_factor, model.kv_channels) == (True, 32.0, 64)
    assert not model.yarn.yarn_correction_range_round_to_int
    assert spec.parallelism.expert_tensor_parallel_size == 1


def test_qwen3_next_has_gated_delta_nets_and_a_gated_shared_expert(model):
    found = model({"architectures": ["Qwen3NextForCausalLM"]})
    assert found.linear_attention.linear_attention_freq == 4
    assert (found.moe.moe_shared_expert_gate, found.attention_output_gate, found.rotary_percent) == (True, True, 0.25)
    assert found.moe.moe_router_load_balancing_type == "global_aux_loss"
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    assert model({"architectures": ["Qwen3NextForCausalLM"], "layer_types": kinds * 12}) == found


def test_moonlight_has_shared_experts_and_plain_rotary_frequencies(model):
    values = published("deepseek-ai/DeepSeek-V3") | {
        "num_hidden_layers": 27, "first_k_dense_replace": 1, "n_shared_experts": 2, "moe_intermediate_size": 1408,
        "q_lora_rank": None, "rope_scaling": None, "num_nextn_predict_layers": 0,
    }  # fmt: skip
    found = model(values)
    assert (found.mla.q_lora_rank, found.mla.rotary_scaling_factor, found.mtp_num_layers) == (None, 1.0, None)
    assert found.moe.moe_shared_expert_intermediate_size == 2816
    assert found.moe.moe_layer_freq == (0,) + (1,) * 26
    kimi = model(values | {"model_type": "kimi_k2"})
    assert (found.moe.moe_aux_loss_coeff, kimi.moe.moe_aux_loss_coeff) == (0.001, 0.001)


def test_a_value_that_a_file_repeats_for_every_layer_is_read_once(model):
    values = {"architectures": ["HunYuanMoEV1ForCausalLM"], "num_experts": 64, "moe_topk": [8] * 32,
              "num_shared_expert": [1] * 32, "moe_intermediate_size": [3072] * 32}  # fmt: skip
    moe = model(values).moe
    assert (moe.moe_router_topk, moe.moe_ffn_hidden_size, moe.moe_shared_expert_intermediate_size) == (8, 3072, 3072)


def test_experts_begin_and_end_at_the_layers_that_ernie_names(model):
    layers = {"architectures": ["Ernie4_5_MoeForCausalLM"], "num_hidden_layers": 6, "moe_layer_end_index": 4}
    assert model(layers).moe.moe_layer_freq == (0, 1, 1, 1, 1, 0)
    assert model(layers | {"moe_layer_interval": 2}).moe.moe_layer_freq == (0, 1, 0, 1, 0, 0)


ERNIE = {
    "architectures": ["Ernie4_5_MoeForCausalLM"], "moe_gate": "topk", "moe_capacity": [64, 64, 64], "moe_use_aux_free": True,
    "num_nextn_predict_layers": 1, "use_rmsnorm": True, "use_bias": False, "is_quantized": False,
}  # fmt: skip
HUNYUAN = {
    "architectures": ["HunYuanMoEV1ForCausalLM"], "num_hidden_layers": 4, "num_experts": 64, "moe_topk": [8] * 4,
    "num_shared_expert": [1] * 4, "use_mixed_mlp_moe": True, "moe_layer_num_skipped": 0, "routed_scaling_factor": 1.0,
    "moe_drop_tokens": False, "capacity_factor": 1.0, "use_cla": False, "cla_share_factor": 2, "norm_type": "hf_rms",
    "use_rotary_pos_emb": True, "pad_id": 127961, "im_start_id": 4, "pool_type": "last", "moe_intermediate_size": 3072,
}  # fmt: skip
LING = {
    "architectures": ["BailingMoeV2ForCausalLM"], "moe_shared_expert_intermediate_size": 512, "mtp_loss_scaling_factor": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("values", [ERNIE, HUNYUAN, LING], ids=["ernie", "hunyuan", "ling"])
def test_keys_of_published_files_that_change_nothing_are_known(model, values):
    read = {
        "architectures",
        "num_hidden_layers",
        "num_experts",
        "moe_topk",
        "num_shared_expert",
        "moe_intermediate_size",
    }
    assert model(values) == model({key: value for key, value in values.items() if key in read})


def test_hunyuans_first_layers_may_have_no_experts(model):
    assert model(HUNYUAN | {"moe_layer_num_skipped": 1}).moe.moe_layer_freq == (0, 1, 1, 1)


@pytest.mark.parametrize(
    ("values", "changes", "names"),
    [
        (ERNIE, {"moe_gate": "top2_fused"}, ["moe_gate is top2_fused: "]),
        (HUNYUAN, {"use_mixed_mlp_moe": False}, ["use_mixed_mlp_moe is false: "]),
        (HUNYUAN, {"routed_scaling_factor": 2.5}, ["routed_scaling_factor is 2.5: "]),
        (LING, {"moe_shared_expert_intermediate_size": 1024}, ["moe_shared_expert_intermediate_size is 1024: "]),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, {"first_k_dense_replace": 2}, ["first_k_dense_replace is 2: "]),
        ({"architectures": ["Glm4MoeForCausalLM"], "head_dim": 128}, {"moe_layer_end_index": 2},
         ["moe_layer_end_index is 2: "]),
    ],
)  # fmt: skip
def test_values_that_the_class_does_not_build_are_refused(resolved, values, changes, names):
    refused(lambda: resolved(values | changes), "config.json: ", *names)


LLAMA4 = {
    "model_type": "llama4_text", "num_hidden_layers": 8, "attention_chunk_size": 8192, "attn_temperature_tuning": True,
    "floor_scale": 8192, "attn_scale": 0.1, "for_llm_compression": False, "layer_types": None, "moe_layers": [1, 3, 5],
}  # fmt: skip


def test_llama_4_has_experts_in_some_layers_and_no_rotary_embedding_in_others(resolved):
    found = resolved({"architectures": ["Llama4ForConditionalGeneration"], "vision_config": {}, "text_config": LLAMA4})
    model, moe = found.spec.model, found.spec.model.moe
    assert (moe.moe_layer_freq, moe.moe_ffn_hidden_size, model.ffn_hidden_size) == (
        (0, 1, 0, 1, 0, 1, 0, 0),
        8192,
        16384,
    )
    assert (model.no_rope_freq, model.qk_l2_norm, moe.moe_apply_probs_on_input) == (4, True, True)
    assert model.layer_kinds[:5] == ("dense", "moe", "dense", "nope_moe", "dense")


@pytest.mark.parametrize(
    ("changes", "freq"),
    [({}, 3), ({"num_hidden_layers": 7}, (0, 0, 1, 0, 0, 1, 0)), ({"no_rope_layers": [1, 0, 0, 1, 1, 1, 0]}, (0, 1, 1, 0, 0, 0)),
     ({"no_rope_layers": [1] * 6}, None), ({"no_rope_layers": []}, 3)],
)  # fmt: skip
def test_layers_without_rotary_embedding_are_those_of_the_list_or_every_nth(model, changes, freq):
    values = {"architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 6, "no_rope_layer_interval": 3}
    assert model(values | changes).no_rope_freq == freq


def test_windows_of_the_later_layers_only(model):
    values = LLAMA | {
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "max_window_layers": 3,
        "num_key_value_heads": 8,
    }
    assert model(values).window_attn_skip_freq == (0, 0, 0, 1)
    assert model(values | {"use_sliding_window": False}).window_size is None


def test_the_keys_of_transformers_5_are_read(model):
    values = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    values["rope_parameters"] = {"rope_theta": 5e5} | LLAMA3_ROPE
    assert (model(values).rotary_base, model(values).rope_scaling_factor) == (500000, 8.0)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"architectures": ["MambaForCausalLM"]}, ["architectures: ", "MambaForCausalLM, which needs Mamba layers"]),
        ({"architectures": ["Gemma3ForCausalLM"]}, ["architectures: ", "Gemma3ForCausalLM", "GeGLU and norms"]),
        ({"architectures": ["NemotronHForCausalLM"]}, ["architectures: ", "NemotronHForCausalLM", "Mamba-2 layers"]),
        ({"architectures": None, "model_type": "falcon_h1"}, ["architectures: ", "falcon_h1", "Mamba-2 layers"]),
        ({"vision_config": {"a": 1}}, ["vision_config: "]),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, ["quantization_config: bitsandbytes"]),
        ({"hidden_act": "gelu"}, ["hidden_act is gelu: ", "silu"]),
        ({"mlp_bias": True}, ["mlp_bias is true: "]),
        ({"rope_scaling": {"rope_type": "longer"}}, ["rope_scaling: longer"]),
        ({"rope_scaling": {"rope_type": "llama3"}}, ["rope_scaling.factor: missing", "llama3"]),
        ({"rope_scaling": {"type": "linear"}}, ["rope_scaling.factor: missing", "linear"]),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, ["rope_parameters.factor: missing", "yarn"]),
        ({"rope_scaling": {"factor": 8.0}}, ["rope_scaling.rope_type: missing"]),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, ["rope_parameters: "]),
        ({"sliding_window": 512}, ["sliding_window is 512"]),
        ({"softcap": 0.22}, ["softcap is 0.22: "]),
        ({"architectures": ["HunYuanMoEV1ForCausalLM"], "moe_topk": [1, 2]}, ["moe_topk: ", "[1, 2]"]),
        ({"hidden_size": "256"}, ["hidden_size: ", '"256"']),
        ({"num_hidden_layers": None}, ["num_hidden_layers: ", " 1", "null"]),
        ({"num_hidden_layers": 10**29}, ["num_hidden_layers: "]),
        ({"rope_scaling": "llama3"}, ["rope_scaling: "]),
        ({"architectures": ["Qwen3NextForCausalLM"], "layer_types": [[]]}, ["layer_types: "]),
        ({"architectures": ["GptOssForCausalLM"], "layer_types": ["full_attention"]}, ["layer_types: 1: "]),
    ],
)  # fmt: skip
def test_what_mbr_perf_cannot_say_is_refused_by_its_key(resolved, changes, names):
    refused(lambda: resolved(LLAMA | changes), "config.json: ", *names)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "config.json:1: not JSON"), ("[1]", "config.json: "), ('{"a": 1, "a": 2}', "duplicate key 'a'")],
)
def test_a_file_that_is_no_strict_json_is_refused(resolved, text, message):
    refused(lambda: resolved(text), message)


def test_a_mark_of_utf_8_at_the_start_does_no_harm(resolved):
    assert resolved("\ufeff" + json.dumps(LLAMA)).spec == resolved(json.dumps(LLAMA)).spec


def test_a_binary_file_and_an_empty_folder_are_refused(tmp_path):
    asked = Request(model_recipe_name="", gpu="h100", num_gpus=8, source=ForeignSource("hf", str(tmp_path)))
    refused(lambda: resolve(asked), str(tmp_path / "config.json"), "no such file")
    (tmp_path / "config.json").write_bytes(b"\x80\x03}q\x00")
    refused(lambda: resolve(asked), str(tmp_path / "config.json"), "not UTF-8")


NO_DEFAULT = {
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6}, "Glm4MoeForCausalLM": {"head_dim": 128},
    "Dots1ForCausalLM": {"n_routed_experts": 128, "num_experts_per_tok": 6},
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_file_with_nothing_but_an_architecture_is_a_whole_model(model, name):
    own = NO_DEFAULT.get(name, {})
    model_type = ARCHITECTURES[name]["defaults"]["model_type"]
    assert model(own | {"architectures": [name]}) == model(own | {"model_type": model_type})


def test_of_a_model_of_several_modalities_the_language_model_is_read_and_the_rest_is_noted(resolved):
    part = {"model_type": "qwen3_5_text", "hidden_size": 2048, "num_hidden_layers": 24, "intermediate_size": 6144}
    found = resolved({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": part,
                      "vision_config": {"depth": 12}, "tie_word_embeddings": True})  # fmt: skip
    assert (found.spec.model.num_layers, found.spec.model.share_embeddings_and_output_weights) == (24, True)
    assert any("text_config" in note and "vision_config" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if i < 1 else pytest.param(name, marks=pytest.mark.long) for i, name in enumerate(PARAMETERS)]
)
def test_a_model_has_the_parameters_of_its_class_in_transformers(name, mbr_perf, tmp_path):
    """The counts are those of `python -m tests.foreign.hf_parameters`."""
    kept = PARAMETERS[name]
    (tmp_path / "config.json").write_text(json.dumps(kept["config"]))
    options = ("-g", "h100", "-ng", "1", "-c", "bf16", "-sl", "256", "-gb", "1", "--only", "none", "--json")
    weights = json.loads(mbr_perf("plan", "--hf", str(tmp_path), *options).out)["settings"][0]["stages"][0]["weights"]
    assert weights == 2 * kept["parameters"] + kept["more_bytes"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*PARAMETERS} - {"BailingMoeV2ForCausalLM"}))
def test_the_kept_counts_are_those_of_transformers(name):
    """Ling 2 is in Megatron-Bridge only."""
    pytest.importorskip("transformers", minversion="5.24.0", reason="pip install -r tests/foreign/requirements.txt")
    from tests.foreign.hf_parameters import counted

    kept, model_type = PARAMETERS[name], str(ARCHITECTURES[name]["defaults"]["model_type"])
    assert counted(name, model_type, kept["config"]) == kept["parameters"]
