"""Small models of each kind, and the recompute settings that act on them."""

from harness.experiment.experiment import ExperimentSpec, KernelSpec
from harness.experiment.model import (
    BatchSpec,
    LinearAttentionModel,
    MlaModel,
    ModelSpec,
    MoeModel,
    ParallelismSpec,
    YarnModel,
)
from harness.experiment.recompute import parse_recompute

SIZES = {"num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "vocab_size": 128}
MOE = {"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 64, "moe_aux_loss_coeff": 0.01}
MLA = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 16}

DENSE = ModelSpec(**SIZES, num_query_groups=2)
GPT3 = ModelSpec(
    **SIZES,
    normalization="LayerNorm",
    layernorm_zero_centered_gamma=True,
    gated_linear_unit=False,
    activation_func="gelu",
    add_bias_linear=True,
    position_embedding_type="learned_absolute",
    share_embeddings_and_output_weights=True,
)
MIXTRAL = ModelSpec(**SIZES, num_query_groups=2, qk_layernorm=True, moe=MoeModel(**MOE, moe_grouped_gemm=False))
GROUPED = ModelSpec(**SIZES, num_query_groups=2, moe=MoeModel(**MOE, moe_grouped_gemm=True))
DEEPSEEK = ModelSpec(
    **SIZES,
    qk_layernorm=True,
    mtp_num_layers=1,
    mla=MlaModel(**MLA),
    moe=MoeModel(
        **{**MOE, "moe_aux_loss_coeff": 1e-4},
        moe_layer_freq=(0, 1, 1, 1),
        moe_shared_expert_intermediate_size=64,
        moe_router_load_balancing_type="seq_aux_loss",
        moe_router_score_function="sigmoid",
        moe_router_pre_softmax=True,
        moe_router_enable_expert_bias=True,
        moe_router_topk_scaling_factor=2.5,
        moe_router_dtype="fp32",
        moe_grouped_gemm=False,
    ),
)
GPT_OSS = ModelSpec(
    **SIZES,
    num_query_groups=2,
    kv_channels=32,
    activation_func="quick_gelu",
    glu_linear_offset=1.0,
    activation_func_clamp_value=7.0,
    add_bias_linear=True,
    softmax_type="learnable",
    window_size=(7, 0),
    window_attn_skip_freq=2,
    position_embedding_type="yarn",
    yarn=YarnModel(yarn_rotary_scaling_factor=32.0, yarn_correction_range_round_to_int=False),
    moe=MoeModel(**MOE, moe_grouped_gemm=False),
)
QWEN3_NEXT = ModelSpec(
    **SIZES,
    num_query_groups=2,
    kv_channels=32,
    qk_layernorm=True,
    attention_output_gate=True,
    layernorm_zero_centered_gamma=True,
    rotary_percent=0.25,
    mtp_num_layers=1,
    linear_attention=LinearAttentionModel(
        linear_attention_freq=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
    ),
    moe=MoeModel(**MOE, moe_shared_expert_intermediate_size=64, moe_shared_expert_gate=True, moe_grouped_gemm=False),
)


def experiment(
    model, recompute="none", *, num_gpus=1, dtype="fp32", dropout=0.0, attention="auto", seq=64, peft=None, **parallel
):
    """A CPU experiment of one step with four micro-batches per model copy; with ``peft`` adapters alone are trained."""
    model = model.model_copy(update={"attention_dropout": dropout, "hidden_dropout": dropout})
    tp = parallel.get("tensor_model_parallel_size", 1)
    return ExperimentSpec(
        recipe="shape",
        family="test",
        task="peft" if peft else "pretrain",
        peft=peft,
        gpu="cpu",
        num_gpus=num_gpus,
        gpus_per_node=8,
        compute_dtype=dtype,
        model=model,
        parallelism=ParallelismSpec(**{"expert_tensor_parallel_size": 1, "sequence_parallel": tp > 1, **parallel}),
        batch=BatchSpec(micro_batch_size=1, global_batch_size=4, seq_length=seq),
        recompute=parse_recompute(recompute),
        kernels=KernelSpec(transformer_impl="local", attention_backend=attention, gradient_accumulation_fusion=False),
    )
