"""A spec becomes megatron-core's configuration: everything that was asked arrives, nothing else does."""

from dataclasses import dataclass, fields

import pytest

from tests.engine import shapes

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]  # torch and megatron warn on import


def as_values(config):
    """Its fields but for the weights' initialisers, which are new functions every time."""
    return {f.name: getattr(config, f.name) for f in fields(config) if not f.name.endswith("init_method")}


def changed(engine, spec, **parts):
    """The fields of megatron-core's configuration that differ when parts of the spec are replaced."""
    other = spec.model_copy(update=parts)
    before, after = as_values(engine.transformer_config(spec)), as_values(engine.transformer_config(other))
    return {name for name in before if before[name] != after[name]}


# A change of the model, and the fields of TransformerConfig that must follow.
MODEL_CHANGES = [
    ({"num_layers": 2}, {"num_layers"}),
    ({"hidden_size": 128}, {"hidden_size", "kv_channels"}),
    ({"ffn_hidden_size": 256}, {"ffn_hidden_size"}),
    ({"num_attention_heads": 8}, {"num_attention_heads", "kv_channels"}),
    ({"num_query_groups": 4}, {"num_query_groups"}),
    ({"num_query_groups": None}, {"num_query_groups"}),
    ({"kv_channels": 32}, {"kv_channels"}),
    ({"gated_linear_unit": False}, {"gated_linear_unit", "bias_activation_fusion"}),
    ({"activation_func": "gelu"}, {"activation_func"}),
    ({"activation_func": "squared_relu"}, {"activation_func", "bias_activation_fusion"}),
    ({"activation_func": "quick_gelu"}, {"activation_func", "bias_activation_fusion"}),
    ({"glu_linear_offset": 1.0}, {"glu_linear_offset", "bias_activation_fusion"}),
    ({"activation_func_clamp_value": 7.0}, {"activation_func_clamp_value", "bias_activation_fusion"}),
    ({"add_bias_linear": True}, {"add_bias_linear"}),
    ({"add_qkv_bias": True}, {"add_qkv_bias"}),
    ({"normalization": "LayerNorm"}, {"normalization"}),
    ({"layernorm_epsilon": 1e-6}, {"layernorm_epsilon"}),
    ({"layernorm_zero_centered_gamma": True}, {"layernorm_zero_centered_gamma"}),
    ({"qk_layernorm": True}, {"qk_layernorm"}),
    ({"qk_l2_norm": True}, {"qk_l2_norm"}),
    ({"no_rope_freq": 2}, {"no_rope_freq"}),
    ({"attention_output_gate": True}, {"attention_output_gate"}),
    ({"softmax_type": "learnable"}, {"softmax_type"}),
    ({"window_size": (127, 0), "window_attn_skip_freq": 2}, {"window_size", "window_attn_skip_freq"}),
    ({"attention_dropout": 0.1}, {"attention_dropout"}),
    ({"hidden_dropout": 0.1}, {"hidden_dropout"}),
    ({"mtp_num_layers": 1, "mtp_loss_scaling_factor": 0.3}, {"mtp_num_layers", "mtp_loss_scaling_factor"}),
]


@pytest.mark.parametrize(
    ("change", "follows"), MODEL_CHANGES, ids=lambda value: str(sorted(value) if isinstance(value, set) else value)[:40]
)
def test_every_part_of_the_model_arrives(engine, change, follows):
    spec = shapes.experiment(shapes.DENSE)
    assert changed(engine, spec, model=spec.model.model_copy(update=change)) == follows


def test_every_field_of_the_model_is_accounted_for():
    """What is not in TransformerConfig is an argument of GPTModel."""
    of_gpt_model = {
        "vocab_size", "make_vocab_size_divisible_by", "share_embeddings_and_output_weights", "position_embedding_type",
        "rotary_base", "rotary_percent", "rope_scaling_factor",
    }  # fmt: skip
    in_config = {name for change, _ in MODEL_CHANGES for name in change} | {"moe", "mla", "yarn", "linear_attention"}
    assert in_config | of_gpt_model == set(type(shapes.DENSE).model_fields)


@pytest.mark.parametrize(
    ("shape", "section"),
    [("DEEPSEEK", "moe"), ("DEEPSEEK", "mla"), ("QWEN3_NEXT", "moe"), ("QWEN3_NEXT", "linear_attention"),
     ("GPT_OSS", "yarn")],
)  # fmt: skip
def test_every_section_of_the_model_arrives_field_by_field(engine, shape, section):
    spec = shapes.experiment(getattr(shapes, shape))
    config = vars(engine.transformer_config(spec))
    asked = getattr(spec.model, section).model_dump()
    frequency = asked.pop("moe_layer_freq", 1)
    assert {name: config[name] for name in asked} == asked
    assert frequency == 1 or config["moe_layer_freq"] == list(frequency)
    variant = "gated_delta_net" if spec.model.linear_attention else None
    assert config["experimental_attention_variant"] == variant


def test_gated_quick_gelu_is_fused_only_inside_experts(engine):
    fused = shapes.experiment(shapes.GPT_OSS)
    dense_too = fused.model.moe.model_copy(update={"moe_layer_freq": (0, 1, 1, 1)})
    mixed = fused.model_copy(update={"model": fused.model.model_copy(update={"moe": dense_too})})
    assert engine.transformer_config(fused).bias_activation_fusion
    assert not engine.transformer_config(mixed).bias_activation_fusion
    off = fused.model_copy(update={"kernels": fused.kernels.model_copy(update={"bias_activation_fusion": False})})
    assert not engine.transformer_config(off).bias_activation_fusion


@pytest.mark.parametrize(
    ("recompute", "granularity", "method", "num_layers", "modules"),
    [
        ("none", None, None, None, None),
        ("core_attn,layernorm", "selective", None, None, ["core_attn", "layernorm"]),
        ("full:uniform:2", "full", "uniform", 2, None),
        ("full:block:3", "full", "block", 3, None),
    ],
)
def test_recompute_arrives_whole(engine, recompute, granularity, method, num_layers, modules):
    config = engine.transformer_config(shapes.experiment(shapes.DENSE, recompute))
    arrived = config.recompute_granularity, config.recompute_method, config.recompute_num_layers
    assert arrived == (granularity, method, num_layers)
    assert config.distribute_saved_activations is False
    assert modules in (None, config.recompute_modules)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_precision_of_weights_pipeline_and_autocast_agree(engine, dtype):
    config = engine.transformer_config(shapes.experiment(shapes.DENSE, dtype=dtype))
    assert {config.params_dtype, config.pipeline_dtype, config.autocast_dtype} == {engine.DTYPES[dtype]}
    assert config.bf16 is (dtype == "bf16")


def test_gradients_and_optimizer_follow_the_spec(engine):
    deferred = {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 22, "pipeline_model_parallel_size": 2}
    fields = engine._parallel(shapes.experiment(shapes.DENSE, num_gpus=2, **deferred))
    assert {name: fields[name] for name in deferred} == deferred
    by_heads = shapes.experiment(shapes.DENSE, num_gpus=2, context_parallel_size=2, cp_comm_type="a2a")
    assert engine._parallel(by_heads)["cp_comm_type"] == "a2a"
    spec = shapes.experiment(shapes.DENSE)
    ddp = spec.ddp.model_copy(update={"overlap_grad_reduce": True, "average_in_collective": True})
    optimizer = spec.optimizer.model_copy(update={"lr": 0.5, "clip_grad": 2.0, "use_distributed_optimizer": False})
    spec = spec.model_copy(update={"ddp": ddp, "optimizer": optimizer})
    buckets = engine.ddp_config(spec)
    assert (buckets.overlap_grad_reduce, buckets.average_in_collective, buckets.bucket_size) == (True, True, 40_000_000)
    assert (buckets.check_for_nan_in_grad, buckets.align_param_gather) == (False, False)
    bridge = ddp.model_copy(update={"bucket_size": 2**27, "align_param_gather": True})
    buckets = engine.ddp_config(spec.model_copy(update={"ddp": bridge}))
    assert (buckets.bucket_size, buckets.align_param_gather) == (2**27, True)
    whole = bridge.model_copy(update={"overlap_grad_reduce": False})
    assert engine.ddp_config(spec.model_copy(update={"ddp": whole})).bucket_size is None
    adam = engine.optimizer_config(spec)
    assert (adam.optimizer, adam.lr, adam.clip_grad, adam.use_distributed_optimizer) == ("adam", 0.5, 2.0, False)


def test_each_optimizer_arrives_with_its_own_settings(engine):
    spec = shapes.experiment(shapes.DENSE, dtype="fp16")
    sgd = {"optimizer": "sgd", "sgd_momentum": 0.5, "loss_scale": 1024.0}
    config = vars(engine.optimizer_config(with_optimizer(spec, **sgd)))
    assert {name: config[name] for name in sgd} == sgd
    assert (config["fp16"], config["bf16"]) == (True, False)
    offloaded = {
        "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": 0.5,
        "overlap_cpu_optimizer_d2h_h2d": True,
    }
    config = vars(engine.optimizer_config(with_optimizer(spec, **offloaded)))
    assert {name: config[name] for name in offloaded} == offloaded


def with_optimizer(spec, **changes):
    return spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update=changes)})


@dataclass
class Older:
    """A release that still calls the scope of CUDA graphs a scope."""

    cuda_graph_impl: str = "none"
    cuda_graph_scope: tuple = ()


@dataclass
class Newer:
    """A release that renamed it and keeps the old name as a deprecated alias."""

    cuda_graph_impl: str = "none"
    cuda_graph_scope: tuple = ()
    cuda_graph_modules: tuple = ()


def test_renamed_fields_go_by_their_newest_name_and_none_is_dropped(engine):
    asked = {"cuda_graph_impl": "local", "cuda_graph_scope": ["attn"]}
    assert engine.fitted(Older, asked) == asked
    assert engine.fitted(Newer, asked) == {"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"]}

    with pytest.raises(engine.UnknownFieldError, match="this megatron-core's Older has no fp8, moe_new"):
        engine.fitted(Older, {"cuda_graph_impl": "local", "fp8": "hybrid", "moe_new": 1})
    assert engine.fitted(Older, {"moe_use_legacy_grouped_gemm": True}) == {}


@pytest.mark.parametrize(
    ("impl", "scope", "release", "expected"),
    [
        ("full_iteration", (), Older, ("local", ["full_iteration"])),
        ("local", ("full_iteration",), Newer, ("full_iteration", [])),
        ("local", ("full_iteration",), Older, ("local", ["full_iteration"])),
        ("transformer_engine", ("attn",), Newer, ("transformer_engine", ["attn"])),
    ],
)
def test_graphs_of_a_whole_iteration_are_asked_for_as_the_release_wants(engine, impl, scope, release, expected):
    graph = type(shapes.experiment(shapes.DENSE).cuda_graph)(impl=impl, scope=scope)
    asked = engine._cuda_graph(graph, release)
    assert (asked["cuda_graph_impl"], asked["cuda_graph_scope"]) == expected
