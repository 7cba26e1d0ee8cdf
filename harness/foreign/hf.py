"""Reads the model of a Hugging Face `config.json` (`--hf`), with Megatron-Bridge's choices for its architecture.

Sources: the config classes of transformers 5.23.0 (defaults), Megatron-Bridge @067f987 (models/*/*_bridge.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import BadRequestError
from harness.experiment.gpu import GPUS
from harness.foreign.hf_config import FILE, HfConfig, read_config
from harness.foreign.hf_fields import (
    Settings,
    clamped,
    core,
    delta_net,
    experts,
    groups,
    heads,
    latents,
    more_tokens,
    qk_norm,
    rope,
    window,
)
from harness.resolve.recipe import ForeignSource, Layer, Request, Setting, Value
from harness.units import shortened


@dataclass(frozen=True)
class Architecture:
    """One model class of transformers: its config class, that class's defaults, and its readers.

    ``chosen``: settings that follow from the architecture and have no key in the file.
    """

    config_class: str
    defaults: Mapping[str, object]
    readers: tuple[Callable[[HfConfig], Settings], ...]
    chosen: Mapping[str, Value]


_HARMLESS_NAMES = (
    "architectures model_type initializer_range use_cache bos_token_id eos_token_id pad_token_id sep_token_id "
    "torch_dtype dtype transformers_version auto_map _name_or_path name_or_path output_router_logits pretraining_tp "
    "ep_size return_dict output_attentions output_hidden_states use_bfloat16 chunk_size_feed_forward id2label "
    "label2id tokenizer_class task_specific_params problem_type _attn_implementation attn_implementation "
    "finetuning_task prefix max_length min_length do_sample temperature top_k top_p repetition_penalty num_beams "
    "seq_aux rope_interleave unsloth_fixed unsloth_version initial_context_length experts_per_token "
    "router_jitter_noise max_window_layers swiglu_alpha num_mtp_layers max_sequence_length"
)  # fmt: skip
HARMLESS = frozenset(_HARMLESS_NAMES.split())
"""Keys that change neither the memory nor the time of a training step, or repeat another key."""

_MODALITIES = ("text_config", "vision_config", "audio_config", "thinker_config", "llm_config", "language_config")


def read(source: ForeignSource, request: Request) -> Layer:
    """Return every setting of the model, and of a usual training step. BadRequestError with all problems.

    The file has no batch, no parallel sizes and no precision: notes name the values that stand in for missing options.
    """
    config = read_config(Path(source.path), source.label)
    architecture = _architecture(config)
    config = replace(config, class_name=architecture.config_class, defaults=architecture.defaults)
    model: Settings = {}
    for reader in architecture.readers:
        model |= reader(config)
    how = f"{config.label}: architectures"
    model |= {path: Setting(value, how) for path, value in architecture.chosen.items()}
    _refuse_other_storage(config)
    step = _usual_step(config, model, request)
    config.refuse_unread(HARMLESS)
    config.problems.raise_if_any()
    return model | step


def _architecture(config: HfConfig) -> Architecture:
    """Return the row of the one model class that the file names."""
    inner = next((key for key in _MODALITIES if config.values.get(key)), None)
    names, kind = config.items("architectures") or (), config.text("model_type")
    if not names or kind == "kimi_k2":  # whose files name DeepSeek-V3's class
        names = tuple(name for name, row in ARCHITECTURES.items() if row.defaults["model_type"] == kind)[:1]
    known = [ARCHITECTURES[name] for name in map(str, names) if name in ARCHITECTURES]
    if len(known) == 1 and not inner:
        return known[0]
    config.problems.raise_if_any()
    if inner:
        raise BadRequestError(
            f"{config.label}: {inner}: mbr-perf does not train models of several modalities",
            remedy="to plan its language model alone, save that part as a separate config.json",
        )
    named = ", ".join(shortened(str(name)) for name in names or (config.values.get("model_type", "none"),))
    raise BadRequestError(
        f"{config.label}: architectures: mbr-perf cannot train {named}",
        remedy=f"known: {', '.join(ARCHITECTURES)}; or describe the model in a recipe",
    )


def _refuse_other_storage(config: HfConfig) -> None:
    """Refuse quantised weights, except where a published checkpoint only stores them so: training uses bf16."""
    stored = config.table("quantization_config")
    method = stored.text("quantization_config.quant_method")
    if stored.values and method != config.defaults.get("stored_as"):
        config.refuse(
            "quantization_config", f"{method or 'no quant_method'}: mbr-perf does not train quantised weights",
            "delete the key from a copy of the file, and choose the precision with -c",
        )  # fmt: skip


_USUAL_LENGTH = 4096
_FEWEST_SAMPLES = 128


def _usual_step(config: HfConfig, model: Settings, request: Request) -> Settings:
    """Return the batch, the precision and the overlap that a job usually has, each with the option that changes it."""

    def usual(value: Value, what: str, option: str) -> Setting:
        return Setting(value, "usual for --hf", note=f"{what}: usual, {FILE} has none ({option} sets it)")

    longest = config.whole("max_position_embeddings")
    num_gpus = request.num_gpus or 1
    samples = -(-_FEWEST_SAMPLES // num_gpus) * num_gpus * (request.micro_batch_size or 1)
    length = min(_USUAL_LENGTH, max(longest or _USUAL_LENGTH, 2))
    is_cpu = GPUS[request.gpu].is_cpu
    precision = GPUS[request.gpu].default_compute_dtype
    chosen: dict[str, Value] = {"ddp.overlap_grad_reduce": not is_cpu, "ddp.overlap_param_gather": not is_cpu}
    if is_cpu:
        chosen["kernels.gradient_accumulation_fusion"] = False
    if "model.moe.num_moe_experts" in model:
        chosen |= {
            "model.moe.moe_grouped_gemm": not is_cpu,
            "kernels.moe_permute_fusion": not is_cpu,
            "parallelism.expert_tensor_parallel_size": 1,
        }
    return {
        "compute_dtype": usual(precision, f"precision {precision}", "-c"),
        "batch.micro_batch_size": usual(1, "micro-batch size 1", "-mb"),
        "batch.global_batch_size": usual(samples, f"global batch size {samples}", "-gb"),
        "batch.seq_length": usual(length, f"{length} tokens per sequence", "-sl"),
    } | {path: Setting(value, "usual for --hf") for path, value in chosen.items()}  # fmt: skip


_SIZES = {"hidden_act": "silu", "attention_dropout": 0.0, "tie_word_embeddings": False, "rope_theta": 10000,
          "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
          "rms_norm_eps": 1e-6,
          "max_position_embeddings": 32768}  # fmt: skip
_DENSE = (core, heads, rope, window)
_LATENT = (core, latents, rope, experts, groups)
_QWEN = {"vocab_size": 151936, "use_sliding_window": False, "sliding_window": 4096}
_QWEN_EXPERTS = _QWEN | {"num_hidden_layers": 24, "hidden_size": 2048, "decoder_sparse_step": 1,
                         "norm_topk_prob": False,
                         "router_aux_loss_coef": 0.001}  # fmt: skip
_DEEPSEEK = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
             "v_head_dim": 128,
             "attention_bias": False, "stored_as": "fp8", "yarn_mscale": 1.0, "yarn_mscale_all_dim": 1.0}  # fmt: skip
_DEEPSEEK_V3 = _DEEPSEEK | {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "max_position_embeddings": 4096, "aux_loss_alpha": 0.0001, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "vocab_unit": 1280, "num_nextn_predict_layers": None,
}  # fmt: skip
_BY_BIAS: dict[str, Value] = {
    "model.moe.moe_router_load_balancing_type": "seq_aux_loss", "model.moe.moe_router_enable_expert_bias": True,
    "model.moe.moe_router_dtype": "fp32",
}  # fmt: skip
_PRE_SOFTMAX: dict[str, Value] = {"model.qk_layernorm": True, "model.moe.moe_router_pre_softmax": True}
_QK_NORM: dict[str, Value] = {"model.qk_layernorm": True}
_GATED: dict[str, Value] = {"model.moe.moe_shared_expert_gate": True}


def _row(
    name: str, readers: tuple[Callable[[HfConfig], Settings], ...], chosen: Mapping[str, Value], **own: object
) -> Architecture:
    return Architecture(name, _SIZES | own, readers, chosen)


ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": _row("LlamaConfig", (core, heads, rope), {}, model_type="llama", intermediate_size=11008,
                             max_position_embeddings=2048),
    "MistralForCausalLM": _row("MistralConfig", _DENSE, {}, model_type="mistral", intermediate_size=14336,
                               num_key_value_heads=8, max_position_embeddings=131072, sliding_window=4096),
    "MixtralForCausalLM": _row("MixtralConfig", (*_DENSE, experts), {}, model_type="mixtral", intermediate_size=14336,
                               num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5,
                               rope_theta=1000000,
                               num_local_experts=8, num_experts_per_tok=2, router_aux_loss_coef=0.001),
    "Qwen2ForCausalLM": _row("Qwen2Config", _DENSE, {}, model_type="qwen2", intermediate_size=22016,
                             num_key_value_heads=32,
                             max_window_layers=28, qkv_bias=True, **_QWEN),
    "Qwen2MoeForCausalLM": _row("Qwen2MoeConfig", (*_DENSE, experts), _GATED, model_type="qwen2_moe",
                                intermediate_size=5632,
                                num_attention_heads=16, num_key_value_heads=16, moe_intermediate_size=1408,
                                shared_expert_intermediate_size=5632, num_experts_per_tok=4, num_experts=60,
                                max_window_layers=28, qkv_bias=True, **_QWEN_EXPERTS),
    "Qwen3ForCausalLM": _row("Qwen3Config", _DENSE, _QK_NORM, model_type="qwen3", intermediate_size=22016,
                             num_key_value_heads=32, head_dim=128, max_window_layers=28, **_QWEN),
    "Qwen3MoeForCausalLM": _row("Qwen3MoeConfig", (*_DENSE, experts), _QK_NORM, model_type="qwen3_moe",
                                intermediate_size=6144, num_key_value_heads=4, moe_intermediate_size=768,
                                num_experts_per_tok=8, num_experts=128, **_QWEN_EXPERTS),
    "Qwen3NextForCausalLM": _row(
        "Qwen3NextConfig", (core, heads, rope, experts, delta_net),
        {**_QK_NORM, **_GATED, "model.layernorm_zero_centered_gamma": True, "model.attention_output_gate": True,
         "model.moe.moe_router_dtype": "fp32", "model.moe.moe_router_load_balancing_type": "global_aux_loss"},
        model_type="qwen3_next", intermediate_size=5632, num_attention_heads=16, num_key_value_heads=2, head_dim=256,
        partial_rotary_factor=0.25, moe_intermediate_size=512, shared_expert_intermediate_size=512,
        num_experts_per_tok=10,
        num_experts=512, linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_value_head_dim=128,
        linear_num_key_heads=16, linear_num_value_heads=32,
        **_QWEN_EXPERTS | {"num_hidden_layers": 48, "norm_topk_prob": True}),
    "DeepseekV2ForCausalLM": _row(
        "DeepseekV2Config", _LATENT,
        {**_PRE_SOFTMAX, "model.moe.moe_router_load_balancing_type": "seq_aux_loss",
         "model.moe.moe_router_dtype": "fp32"},
        model_type="deepseek_v2", vocab_size=102400, intermediate_size=11008, moe_intermediate_size=1407,
        n_shared_experts=2, n_routed_experts=64, routed_scaling_factor=1.0, first_k_dense_replace=0,
        max_position_embeddings=2048, scoring_func="softmax", topk_method="greedy", aux_loss_alpha=0.0,
        norm_topk_prob=False, vocab_unit=3200, **_DEEPSEEK),
    "DeepseekV3ForCausalLM": _row("DeepseekV3Config", (*_LATENT, more_tokens), _PRE_SOFTMAX | _BY_BIAS,
                                  model_type="deepseek_v3", **_DEEPSEEK_V3),
    "KimiK2ForCausalLM": _row("DeepseekV3Config", (*_LATENT, more_tokens),
                              {**_PRE_SOFTMAX, **_BY_BIAS, "model.moe.moe_aux_loss_coeff": 1e-3},
                              model_type="kimi_k2", **_DEEPSEEK_V3),
    "Glm4MoeForCausalLM": _row(
        "Glm4MoeConfig", (core, heads, rope, experts, groups, more_tokens, qk_norm),
        {**_BY_BIAS, "model.moe.moe_router_bias_update_rate": 0.0, "model.moe.moe_aux_loss_coeff": 0.001,
         "model.mtp_loss_scaling_factor": 0.3},
        model_type="glm4_moe", vocab_size=151552, intermediate_size=10944, num_hidden_layers=46, num_attention_heads=96,
        num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5, partial_rotary_factor=0.5,
        moe_intermediate_size=1408, num_experts_per_tok=8, n_shared_experts=1, n_routed_experts=128,
        routed_scaling_factor=1.0, n_group=1, topk_group=1, first_k_dense_replace=1, scoring_func="sigmoid",
        num_nextn_predict_layers=None),
    "GptOssForCausalLM": _row(
        "GptOssConfig", (*_DENSE, experts, clamped),
        {"model.add_bias_linear": True, "model.activation_func": "quick_gelu", "model.glu_linear_offset": 1.0,
         "model.softmax_type": "learnable", "model.moe.moe_router_load_balancing_type": "none"},
        model_type="gpt_oss", num_hidden_layers=36, num_local_experts=128, vocab_size=201088, hidden_size=2880,
        intermediate_size=2880, head_dim=64, num_attention_heads=64, num_key_value_heads=8, sliding_window=128,
        alternates=True, attention_bias=True, rms_norm_eps=1e-5, max_position_embeddings=131072, rope_theta=150000,
        num_experts_per_tok=4, swiglu_limit=7.0, router_aux_loss_coef=0.001, stored_as="mxfp4", rope_type="yarn",
        yarn_factor=32.0, truncate=False),
}  # fmt: skip
"""The model classes that mbr-perf can train, as `architectures` of a file names them."""
