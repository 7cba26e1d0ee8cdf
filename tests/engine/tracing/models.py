"""Published models at full width, and experiments on them."""

from harness.experiment.experiment import ExperimentSpec, KernelSpec, PeftSpec
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
from harness.records.trace import TraceCase

LLAMA3_70B = ModelSpec(num_layers=80, hidden_size=8192, ffn_hidden_size=28672, num_attention_heads=64,
                       num_query_groups=8, vocab_size=128256)  # fmt: skip
MIXTRAL_8X7B = ModelSpec(
    num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32, num_query_groups=8, vocab_size=32000,
    moe=MoeModel(num_moe_experts=8, moe_router_topk=2, moe_ffn_hidden_size=14336, moe_aux_loss_coeff=0.01),
)  # fmt: skip
QWEN3_8B = ModelSpec(num_layers=36, hidden_size=4096, ffn_hidden_size=12288, num_attention_heads=32, num_query_groups=8,
                     kv_channels=128, vocab_size=151936, qk_layernorm=True)  # fmt: skip
QWEN3_30B_A3B = ModelSpec(
    num_layers=48, hidden_size=2048, ffn_hidden_size=6144, num_attention_heads=32, num_query_groups=4, kv_channels=128,
    vocab_size=151936, qk_layernorm=True,
    moe=MoeModel(num_moe_experts=128, moe_router_topk=8, moe_ffn_hidden_size=768, moe_aux_loss_coeff=1e-3),
)  # fmt: skip
DEEPSEEK_V3 = ModelSpec(
    num_layers=61, hidden_size=7168, ffn_hidden_size=18432, num_attention_heads=128, kv_channels=128, vocab_size=129280,
    qk_layernorm=True, mtp_num_layers=1,
    mla=MlaModel(q_lora_rank=1536, kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128,
                 rope_type="rope"),
    moe=MoeModel(
        num_moe_experts=256, moe_router_topk=8, moe_ffn_hidden_size=2048, moe_layer_freq=(0,) * 3 + (1,) * 58,
        moe_shared_expert_intermediate_size=2048, moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=1e-4,
        moe_router_num_groups=8, moe_router_group_topk=4, moe_router_pre_softmax=True,
        moe_router_score_function="sigmoid", moe_router_topk_scaling_factor=2.5, moe_router_enable_expert_bias=True,
        moe_router_dtype="fp32",
    ),
)  # fmt: skip
GPT_OSS_120B = ModelSpec(
    num_layers=36, hidden_size=2880, ffn_hidden_size=2880, num_attention_heads=64, num_query_groups=8, kv_channels=64,
    vocab_size=201088, activation_func="quick_gelu", glu_linear_offset=1.0, activation_func_clamp_value=7.0,
    add_bias_linear=True, softmax_type="learnable", window_size=(127, 0), window_attn_skip_freq=2,
    position_embedding_type="yarn", rotary_base=150000,
    yarn=YarnModel(yarn_rotary_scaling_factor=32.0, yarn_correction_range_round_to_int=False),
    moe=MoeModel(num_moe_experts=128, moe_router_topk=4, moe_ffn_hidden_size=2880),
)  # fmt: skip
QWEN3_NEXT_80B = ModelSpec(
    num_layers=48, hidden_size=2048, ffn_hidden_size=5120, num_attention_heads=16, num_query_groups=2, kv_channels=256,
    vocab_size=151936, qk_layernorm=True, attention_output_gate=True, layernorm_zero_centered_gamma=True,
    rotary_base=10000000, rotary_percent=0.25, mtp_num_layers=1,
    linear_attention=LinearAttentionModel(linear_attention_freq=4),
    moe=MoeModel(num_moe_experts=512, moe_router_topk=10, moe_ffn_hidden_size=512, moe_aux_loss_coeff=1e-3,
                 moe_shared_expert_intermediate_size=512, moe_shared_expert_gate=True),
)  # fmt: skip


def experiment(
    model, recompute="none", *, dtype="bf16", gpu="h100", seq=4096, mbs=1, sp=None, changes=None, **parallel
):
    """A job of 256 GPUs; ``changes`` replaces kernel settings."""
    tp = parallel.get("tensor_model_parallel_size", 1)
    return ExperimentSpec(
        recipe="model", family="test", gpu=gpu, num_gpus=256, gpus_per_node=8, compute_dtype=dtype, model=model,
        parallelism=ParallelismSpec(sequence_parallel=tp > 1 if sp is None else sp, **parallel),
        batch=BatchSpec(micro_batch_size=mbs, global_batch_size=256 * mbs, seq_length=seq),
        recompute=parse_recompute(recompute), kernels=KernelSpec(**(changes or {})),
    )  # fmt: skip


def llama(recompute="none", **options):
    """Llama3-70B with TP 4 and sequence parallelism, 4096 tokens."""
    return experiment(LLAMA3_70B, recompute, **{"tensor_model_parallel_size": 4, **options})


def llama_by_heads(recompute="none", **options):
    """The same model on two context-parallel ranks that exchange tokens for heads."""
    return llama(recompute, **{"context_parallel_size": 2, "cp_comm_type": "a2a", **options})


def lora(recompute="none", of=llama, **options):
    """The job of ``of`` with adapters of rank 16 beside all four kinds of linear layers."""
    return of(recompute, **options).model_copy(update={"task": "peft", "peft": PeftSpec(dim=16)})


def lora_qkv(recompute="none", **options):
    """Llama 3 70B with adapters beside linear_qkv alone, as in Megatron-Bridge's performance recipes."""
    peft = PeftSpec(dim=16, target_modules=("linear_qkv",))
    return llama(recompute, **options).model_copy(update={"task": "peft", "peft": peft})


def lora_moe(recompute="none", **options):
    """Mixtral with adapters: the experts of a rank share one."""
    return lora(recompute, mixtral, **options)


def mixtral(recompute="none", **options):
    """Mixtral 8x7B with TP 2 and EP 8."""
    sizes = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 8}
    return experiment(MIXTRAL_8X7B, recompute, **{**sizes, **options})


def deepseek(recompute="none", mla=None, **options):
    """DeepSeek-V3 with TP 2 and EP 64, experts not cut; ``mla`` replaces settings of its attention."""
    model = DEEPSEEK_V3.model_copy(update={"mla": DEEPSEEK_V3.mla.model_copy(update=mla or {})})
    sizes = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 64, "expert_tensor_parallel_size": 1}
    return experiment(model, recompute, changes={"moe_permute_fusion": True}, **{**sizes, **options})


def qwen(recompute="none", **options):
    """Qwen3 8B with TP 2: Q and K are normalised before attention."""
    return experiment(QWEN3_8B, recompute, **{"tensor_model_parallel_size": 2, **options})


def qwen_moe(recompute="none", **options):
    """Qwen3 30B-A3B with EP 8, without tensor parallelism."""
    return experiment(QWEN3_30B_A3B, recompute, **{"expert_model_parallel_size": 8, **options})


def gpt_oss(recompute="none", **options):
    """gpt-oss 120B with EP 8: attention sinks everywhere, a sliding window in every other layer."""
    return experiment(
        GPT_OSS_120B, recompute, **{"expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1, **options}
    )


def qwen3_next(recompute="none", **options):
    """Qwen3-Next 80B with EP 128: three gated delta net layers before each layer of attention."""
    return experiment(
        QWEN3_NEXT_80B, recompute, **{"expert_model_parallel_size": 128, "expert_tensor_parallel_size": 1, **options}
    )


def case(key, spec, kind="dense", num_layers=1, **options):
    """One middle layer unless told otherwise."""
    return TraceCase(key=key, spec=spec, layer_kind=kind, num_layers=num_layers, **options)
