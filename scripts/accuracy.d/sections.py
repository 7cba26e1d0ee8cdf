"""Sections of an ExperimentSpec from arguments of Megatron-LM's launcher."""

import ast
import operator
from collections.abc import Iterable, Mapping
from typing import Any

Arguments = Mapping[str, Any]
Section = dict[str, Any]

# GPT-2's vocabulary, where no other is named.
VOCAB_SIZE = 50257


class InexpressibleError(ValueError):
    """The run used a feature that a spec cannot express."""


def dtype(a: Arguments) -> str:
    """Return the row of `PRECISIONS`."""
    if not a.get("bf16") and not a.get("fp16"):
        raise InexpressibleError("FP32 training on a GPU")
    if not a.get("fp8-format"):
        return "bf16"
    recipe, gathers = a.get("fp8-recipe", "delayed"), bool(a.get("fp8-param-gather"))
    known = {
        ("tensorwise", True): "fp8_cs",
        ("tensorwise", False): "fp8_cs",
        ("delayed", True): "fp8_ds",
        ("blockwise", False): "fp8_sc",
    }
    if (recipe, gathers) not in known:
        raise InexpressibleError(f"FP8 {recipe} with{'' if gathers else 'out'} parameters gathered in FP8")
    return known[recipe, gathers]


def model(a: Arguments) -> Section:
    """Return the model's section."""
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
        "vocab_size": a.get("vocab-size", VOCAB_SIZE),
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


def _moe(a: Arguments, ffn: int) -> Section:
    freq = a.get("moe-layer-freq", 1)
    return {
        "num_moe_experts": a["num-experts"],
        "moe_router_topk": a.get("moe-router-topk", 2),
        "moe_ffn_hidden_size": a.get("moe-ffn-hidden-size") or ffn,
        "moe_layer_freq": tuple(_pattern(freq)) if isinstance(freq, str) else freq,
        "moe_shared_expert_intermediate_size": a.get("moe-shared-expert-intermediate-size"),
        "moe_router_load_balancing_type": _one_of(a.get("moe-router-load-balancing-type", "aux_loss")),
        "moe_aux_loss_coeff": float(a.get("moe-aux-loss-coeff", 0.0)),
        "moe_router_pre_softmax": bool(a.get("moe-router-pre-softmax")) or a.get("moe-router-topk") == 1,
        "moe_router_score_function": a.get("moe-router-score-function", "softmax"),
        "moe_router_num_groups": a.get("moe-router-num-groups"),
        "moe_router_group_topk": a.get("moe-router-group-topk"),
        "moe_router_enable_expert_bias": bool(a.get("moe-router-enable-expert-bias")),
        "moe_router_dtype": a.get("moe-router-dtype"),
        "moe_grouped_gemm": bool(a.get("moe-grouped-gemm")),
    }


_ALIKE = {"sinkhorn": "none", "global_aux_loss": "aux_loss"}


def _one_of(kind: str) -> str:
    kind = _ALIKE.get(kind, kind)
    if kind not in ("aux_loss", "seq_aux_loss", "none"):
        raise InexpressibleError(f"router load balancing by {kind}")
    return kind


def _mla(a: Arguments) -> Section:
    return {
        "q_lora_rank": a.get("q-lora-rank"),
        "kv_lora_rank": a["kv-lora-rank"],
        "qk_head_dim": a["qk-head-dim"],
        "qk_pos_emb_head_dim": a["qk-pos-emb-head-dim"],
        "v_head_dim": a["v-head-dim"],
    }


def parallelism(a: Arguments) -> Section:
    """Return the parallel sizes and the cut over stages."""
    tp, pp = a.get("tensor-model-parallel-size", 1), a.get("pipeline-model-parallel-size", 1)
    per_chunk, vp = a.get("num-layers-per-virtual-pipeline-stage"), a.get("num-virtual-stages-per-pipeline-rank")
    layout = _layout(a)
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
        "defer_embedding_wgrad_compute": bool(a.get("defer-embedding-wgrad-compute")),
        "wgrad_deferral_limit": a.get("wgrad-deferral-limit", 0),
    }


def _layout(a: Arguments) -> str | None:
    """Return the layout with its MTP layers; before megatron-core 0.16 it did not name them: they precede the loss."""
    layout, num_mtp = a.get("pipeline-model-parallel-layout"), a.get("mtp-num-layers") or 0
    return layout.replace("L", "m" * num_mtp + "L") if layout and "m" not in layout else layout


def recompute(a: Arguments) -> Section:
    """Return the recompute policy."""
    granularity = a.get("recompute-granularity")
    if granularity == "full":
        return {"granularity": "full", "method": a["recompute-method"], "num_layers": a.get("recompute-num-layers", 1)}
    if granularity == "selective":
        return {"granularity": "selective", "modules": names(a.get("recompute-modules", ("core_attn",)))}
    return {"granularity": "none"}


def optimizer(a: Arguments) -> Section:
    """Return the sharding and the precision of states."""
    own = ("main-params-dtype", "main-grads-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
    return {
        "use_distributed_optimizer": bool(a.get("use-distributed-optimizer")),
        "use_precision_aware_optimizer": bool(a.get("use-precision-aware-optimizer")),
        **{name.replace("-", "_"): a.get(name) for name in own if a.get(name)},
    }


def offloaded(a: Arguments) -> tuple[str, ...]:
    """Return the modules whose activations go to the host."""
    modules = names(a.get("offload-modules", ()))
    return modules if a.get("fine-grained-activation-offloading") else ()


def names(text: str | Iterable[str]) -> tuple[str, ...]:
    """Return `[mlp moe_act]` or a list as a tuple."""
    return tuple(text.strip("[]").replace(",", " ").split() if isinstance(text, str) else text)


def shards_all(a: Arguments) -> bool:
    """Whether Megatron-FSDP shards weights, gradients and optimizer state, which is the one way that is modelled."""
    return a.get("data-parallel-sharding-strategy") == "optim_grads_params"


def cuda_graph(a: Arguments) -> Section:
    """Return the settings of CUDA graphs."""
    scope = a.get("cuda-graph-modules", a.get("cuda-graph-scope", ()))
    return {"impl": a.get("cuda-graph-impl", "none"), "scope": names(scope)}


def kernels(a: Arguments) -> Section:
    """Return the implementations; the caller settles the attention."""
    local = a.get("transformer-impl", "transformer_engine") == "local"
    return {
        "transformer_impl": "local" if local else "transformer_engine",
        "gradient_accumulation_fusion": not a.get("no-gradient-accumulation-fusion") and not local,
        "cross_entropy_loss_fusion": bool(a.get("cross-entropy-loss-fusion")),
        "cross_entropy_fusion_impl": a.get("cross-entropy-fusion-impl", "native"),
        "tp_comm_overlap": bool(a.get("tp-comm-overlap")),
        "moe_token_dispatcher_type": a.get("moe-token-dispatcher-type", "allgather"),
        "moe_permute_fusion": bool(a.get("moe-permute-fusion")),
        "moe_shared_expert_overlap": bool(a.get("moe-shared-expert-overlap")),
        "overlap_moe_expert_parallel_comm": bool(a.get("overlap-moe-expert-parallel-comm")),
    }


def _pattern(text: str) -> list[int]:
    """Parse `([0]*1+[1]*15)` without running it."""
    found: list[int] = _evaluated(ast.parse(text, mode="eval").body)
    return found


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
        case _:
            raise InexpressibleError(f"layer pattern {ast.unparse(node)}")
