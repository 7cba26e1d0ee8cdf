"""Arguments of Megatron-LM's launcher as an ExperimentSpec, or the reason why they cannot be one."""

import ast
import operator
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from harness.spec.experiment import ExperimentSpec
from harness.spec.gpu import GPUS

Arguments = Mapping[str, Any]

# GPT-2's vocabulary: all these runs use its tokenizer.
VOCAB_SIZE = 50257

# What no field of a spec stands for, by the argument that asks for it.
INEXPRESSIBLE = {
    "fp16": "FP16 training",
    "optimizer": "an optimizer other than Adam",
    "use-megatron-fsdp": "Megatron-FSDP",
    "num-distributed-optimizer-instances": "several instances of the distributed optimizer",
    "overlap-p2p-communication-warmup-flush": "messages overlapped in warm-up and flush",
    "first-last-layers-bf16": "first and last layers kept in BF16",
    "export-te-mcore-model": "distillation",
    "use-transformer-engine-op-fuser": "transformer-engine's operation fuser",
    "fine-grained-activation-offloading": "activations offloaded to the host",
    "overlap-param-gather-with-optimizer-step": "parameters gathered inside the optimizer step",
    "outer-dp-sharding-strategy": "hybrid sharding",
    "rotary-interleaved": "interleaved rotary embedding",
}


class InexpressibleError(ValueError):
    """The run did something that a spec cannot say."""


def spec_of(arguments: Arguments, hardware: str, world_size: int) -> ExperimentSpec:
    """The run as a spec with `transformer_impl` and attention settled; InexpressibleError with the reason otherwise.

    Defaults are those of Megatron-LM's `arguments.py`: FFN of 4 h (with SwiGLU 8/3 h rounded to 64), dropout of 0.1,
    learned positions, biases, tied embeddings, gradients accumulated in FP32 for BF16 runs.
    """
    for name, reason in INEXPRESSIBLE.items():
        if arguments.get(name) not in (None, False):
            raise InexpressibleError(reason)
    if hardware.endswith("?") or hardware.lower() not in GPUS:
        raise InexpressibleError("the hardware is not certain")
    gpu = hardware.lower()
    if arguments.get("cross-entropy-loss-fusion") and arguments.get("cross-entropy-fusion-impl", "native") != "te":
        raise InexpressibleError("cross-entropy fused by megatron's own kernel, not by transformer-engine's")
    spec = _spec(arguments, gpu, world_size)
    samples = spec.batch.micro_batch_size * spec.data_parallel_size
    if not samples or spec.batch.global_batch_size % samples:
        raise InexpressibleError(f"the batch does not divide over the {world_size} GPUs that the test declares")
    return spec


def _spec(arguments: Arguments, gpu: str, world_size: int) -> ExperimentSpec:
    try:
        return ExperimentSpec(
            recipe="megatron_lm",
            family="gpt",
            gpu=gpu,
            num_gpus=world_size,
            gpus_per_node=min(8, world_size),
            compute_dtype=_dtype(arguments),
            model=_model(arguments),
            parallelism=_parallelism(arguments),
            batch={
                "micro_batch_size": arguments["micro-batch-size"],
                "global_batch_size": arguments["global-batch-size"],
                "seq_length": arguments["seq-length"],
            },
            recompute=_recompute(arguments),
            optimizer={"use_distributed_optimizer": bool(arguments.get("use-distributed-optimizer"))},
            ddp={
                "grad_reduce_in_fp32": True,
                "overlap_grad_reduce": bool(arguments.get("overlap-grad-reduce")),
                "overlap_param_gather": bool(arguments.get("overlap-param-gather")),
            },
            cuda_graph=_cuda_graph(arguments),
            kernels=_kernels(arguments),
        )
    except ValidationError as error:
        raise InexpressibleError(f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error


def _dtype(a: Arguments) -> str:
    if not a.get("bf16"):
        raise InexpressibleError("FP32 training on a GPU")
    if not a.get("fp8-format"):
        return "bf16"
    recipe, gathers = a.get("fp8-recipe", "delayed"), bool(a.get("fp8-param-gather"))
    known = {("tensorwise", True): "fp8_cs", ("delayed", True): "fp8_ds", ("blockwise", False): "fp8_sc"}
    if (recipe, gathers) not in known:
        raise InexpressibleError(f"FP8 {recipe} with{'' if gathers else 'out'} parameters gathered in FP8")
    return known[recipe, gathers]


def _model(a: Arguments) -> dict[str, Any]:
    hidden, gated = a["hidden-size"], bool(a.get("swiglu"))
    ffn = a.get("ffn-hidden-size") or (int(hidden * 4 * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    position = a.get("position-embedding-type", "learned_absolute")
    return {
        "num_layers": a["num-layers"],
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "num_attention_heads": a["num-attention-heads"],
        "num_query_groups": a.get("num-query-groups") if a.get("group-query-attention") else None,
        "kv_channels": a.get("kv-channels"),
        "vocab_size": VOCAB_SIZE,
        "make_vocab_size_divisible_by": a.get("make-vocab-size-divisible-by", 128),
        "share_embeddings_and_output_weights": not a.get("untie-embeddings-and-output-weights"),
        "gated_linear_unit": gated,
        "activation_func": "silu" if gated else "gelu",
        "add_bias_linear": not a.get("disable-bias-linear"),
        "normalization": a.get("normalization", "LayerNorm"),
        "qk_layernorm": bool(a.get("qk-layernorm")),
        "position_embedding_type": position,
        "rotary_percent": float(a.get("rotary-percent", 1.0)),
        "attention_dropout": float(a.get("attention-dropout", 0.1)),
        "hidden_dropout": float(a.get("hidden-dropout", 0.1)),
        "mtp_num_layers": a.get("mtp-num-layers"),
        "moe": _moe(a, ffn) if a.get("num-experts") else None,
        "mla": _mla(a) if a.get("multi-latent-attention") else None,
    }


def _moe(a: Arguments, ffn: int) -> dict[str, Any]:
    freq = a.get("moe-layer-freq", 1)
    return {
        "num_moe_experts": a["num-experts"],
        "moe_router_topk": a.get("moe-router-topk", 2),
        "moe_ffn_hidden_size": a.get("moe-ffn-hidden-size") or ffn,
        "moe_layer_freq": tuple(_pattern(freq)) if isinstance(freq, str) else freq,
        "moe_shared_expert_intermediate_size": a.get("moe-shared-expert-intermediate-size"),
        "moe_router_load_balancing_type": _one_of(a.get("moe-router-load-balancing-type", "aux_loss")),
        "moe_aux_loss_coeff": float(a.get("moe-aux-loss-coeff", 0.0)),
        "moe_router_pre_softmax": bool(a.get("moe-router-pre-softmax")),
        "moe_router_score_function": a.get("moe-router-score-function", "softmax"),
        "moe_router_num_groups": a.get("moe-router-num-groups"),
        "moe_router_group_topk": a.get("moe-router-group-topk"),
        "moe_router_enable_expert_bias": bool(a.get("moe-router-enable-expert-bias")),
        "moe_router_dtype": a.get("moe-router-dtype"),
        "moe_grouped_gemm": bool(a.get("moe-grouped-gemm")),
    }


def _one_of(kind: str) -> str:
    if kind not in ("aux_loss", "seq_aux_loss", "none"):
        raise InexpressibleError(f"router load balancing by {kind}")
    return kind


def _mla(a: Arguments) -> dict[str, Any]:
    return {
        "q_lora_rank": a.get("q-lora-rank"),
        "kv_lora_rank": a["kv-lora-rank"],
        "qk_head_dim": a["qk-head-dim"],
        "qk_pos_emb_head_dim": a["qk-pos-emb-head-dim"],
        "v_head_dim": a["v-head-dim"],
    }


def _parallelism(a: Arguments) -> dict[str, Any]:
    tp, pp = a.get("tensor-model-parallel-size", 1), a.get("pipeline-model-parallel-size", 1)
    per_chunk, vp = a.get("num-layers-per-virtual-pipeline-stage"), a.get("num-virtual-stages-per-pipeline-rank")
    layout = a.get("pipeline-model-parallel-layout")
    return {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": a["num-layers"] // pp // per_chunk if per_chunk else vp,
        "context_parallel_size": a.get("context-parallel-size", 1),
        "expert_model_parallel_size": a.get("expert-model-parallel-size", 1),
        "expert_tensor_parallel_size": a.get("expert-tensor-parallel-size"),
        "sequence_parallel": bool(a.get("sequence-parallel")) and tp > 1,
        "pipeline_model_parallel_layout": layout,
        "account_for_embedding_in_pipeline_split": bool(a.get("account-for-embedding-in-pipeline-split")),
        "account_for_loss_in_pipeline_split": bool(a.get("account-for-loss-in-pipeline-split")),
        "num_layers_in_first_pipeline_stage": a.get("decoder-first-pipeline-num-layers"),
        "num_layers_in_last_pipeline_stage": a.get("decoder-last-pipeline-num-layers"),
        "microbatch_group_size_per_vp_stage": a.get("microbatch-group-size-per-virtual-pipeline-stage"),
    }


def _recompute(a: Arguments) -> dict[str, Any]:
    granularity = a.get("recompute-granularity")
    if granularity == "full":
        return {"granularity": "full", "method": a["recompute-method"], "num_layers": a.get("recompute-num-layers", 1)}
    if granularity == "selective":
        modules = a.get("recompute-modules", ["core_attn"])
        names = modules.strip("[]").split() if isinstance(modules, str) else modules
        return {"granularity": "selective", "modules": tuple(names)}
    return {"granularity": "none"}


def _cuda_graph(a: Arguments) -> dict[str, Any]:
    scope = a.get("cuda-graph-modules", a.get("cuda-graph-scope", ()))
    names = scope.strip("[]").split() if isinstance(scope, str) else scope
    return {"impl": a.get("cuda-graph-impl", "none"), "scope": tuple(names)}


def _kernels(a: Arguments) -> dict[str, Any]:
    """Local layers attend by scores, as megatron's own do; `auto` is left to transformer-engine."""
    local = a.get("transformer-impl", "transformer_engine") == "local"
    return {
        "transformer_impl": "local" if local else "transformer_engine",
        "attention_backend": "unfused" if local else a.get("attention-backend", "auto"),
        "gradient_accumulation_fusion": not a.get("no-gradient-accumulation-fusion") and not local,
        "cross_entropy_loss_fusion": bool(a.get("cross-entropy-loss-fusion")),
        "tp_comm_overlap": bool(a.get("tp-comm-overlap")),
        "moe_token_dispatcher_type": a.get("moe-token-dispatcher-type", "allgather"),
        "moe_permute_fusion": bool(a.get("moe-permute-fusion")),
    }


def _pattern(text: str) -> list[int]:
    """`([0]*1+[1]*15)` without running it."""
    return _evaluated(ast.parse(text, mode="eval").body)


def _evaluated(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.List(elts=elements):
            return [_evaluated(element) for element in elements]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return operator.add(_evaluated(left), _evaluated(right))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return operator.mul(_evaluated(left), _evaluated(right))
    raise InexpressibleError(f"layer pattern {ast.unparse(node)}")
