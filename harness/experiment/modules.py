"""The modules that selective recompute can name, a row each. Rules about one module name it in `rules/`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from harness.units import parse_version

if TYPE_CHECKING:  # help and completion read the names, and pydantic takes longer to import than they take
    from harness.experiment.experiment import ExperimentSpec
    from harness.experiment.model import LayerKind


@dataclass(frozen=True)
class Layers:
    """The layers of a model as recompute sees them; MTP layers are of the kind of the last decoder layer."""

    spec: "ExperimentSpec"
    implementation: Literal["transformer_engine", "local"]
    version: Version

    @cached_property
    def kinds(self) -> tuple["LayerKind", ...]:
        kinds = self.spec.model.layer_kinds
        return kinds + kinds[-1:] * (self.spec.model.mtp_num_layers or 0)

    @cached_property
    def moe(self) -> int:
        return sum(kind.endswith("moe") for kind in self.kinds)

    @cached_property
    def delta_nets(self) -> int:
        return sum(kind.startswith("delta") for kind in self.kinds)


Effect = int | str
"""The number of layers on which a module acts, or the reason why it acts on none."""


@dataclass(frozen=True)
class Frames:
    """Frames of a stack that belong to a module: their path contains ``path``, in one of ``functions`` if given."""

    path: str
    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecomputeModule:
    """One name of `recompute_modules`.

    ``effect``: where megatron-core's layers have the module. ``switches``: the attributes of a built layer that turn it
    on, ``part`` an attribute without which they mean nothing. ``discards_output``: it runs through
    `CheckpointWithoutOutput` and not through a plain checkpoint. ``inside``: the module that contains it.
    ``graph_scopes``: the scopes of transformer_engine graphs that capture it. ``flops``: the fields of `LayerFlops`
    that run again. ``frames``: its places in stacks. ``since_mcore``: the first release of megatron-core that has it.
    """

    name: str
    effect: Callable[[Layers], Effect]
    switches: tuple[str, ...]
    part: str = ""
    discards_output: bool = False
    inside: str = ""
    graph_scopes: tuple[str, ...] = ()
    flops: tuple[str, ...] = ()
    frames: tuple[Frames, ...] = ()
    since_mcore: str = "0.16"


def _layernorm(layers: Layers) -> Effect:
    if layers.implementation == "local" or layers.spec.model.mla:
        return len(layers.kinds)
    if not layers.moe:
        return "every norm is fused into the linear layer that follows it"
    if pre_mlp_norm_stays_in_graph(layers.spec):
        return "the router graph returns the norm's output, and the input norm is fused into the QKV projection"
    return layers.moe


def pre_mlp_norm_stays_in_graph(spec: "ExperimentSpec") -> bool:
    """Tell a transformer_engine router graph that keeps the pre-MLP norm's output in a static buffer (G28)."""
    graph, kernels = spec.cuda_graph, spec.kernels
    if graph.impl != "transformer_engine" or "moe_router" not in graph.scope or spec.model.moe is None:
        return False
    if spec.model.moe.moe_shared_expert_intermediate_size and kernels.moe_shared_expert_overlap:
        return True
    return "moe_preprocess" not in graph.scope or kernels.moe_token_dispatcher_type in ("allgather", "flex")


def _moe(layers: Layers) -> Effect:
    return layers.moe or "the model has no MoE layer"


def _moe_act(layers: Layers) -> Effect:
    moe = layers.spec.model.moe
    if moe and not moe.moe_grouped_gemm:
        return "only grouped GEMM experts have it; moe_grouped_gemm is off"
    if moe and layers.implementation == "local" and not layers.version < parse_version("0.17"):
        return "this megatron-core runs the local experts one after the other, without this module"
    return _moe(layers)


def _shared_experts(layers: Layers) -> Effect:
    moe = layers.spec.model.moe
    if moe and moe.moe_shared_expert_intermediate_size is None:
        return "the MoE layers have no shared experts"
    if moe and layers.spec.kernels.moe_shared_expert_overlap:
        return "overlapped shared experts never pass through the checkpoint"
    return _moe(layers)


_MOE_LAYER = "megatron/core/transformer/moe/"

MODULES: dict[str, RecomputeModule] = {
    row.name: row
    for row in (
        RecomputeModule(  # attention scores, softmax and context
            "core_attn",
            lambda layers: (
                len(layers.kinds) - layers.delta_nets or "every layer has a gated delta net in place of attention"
            ),
            switches=("self_attention.checkpoint_core_attention",),
            graph_scopes=("attn",),
            flops=("core_attn",),
            frames=(
                Frames("megatron/core/transformer/dot_product_attention.py"),
                Frames("megatron/core/fusions/fused_softmax.py"),
                Frames("transformer_engine/pytorch/attention/"),
                Frames("harness/engine/model.py", ("forward",)),  # attention without transformer-engine
            ),
        ),
        RecomputeModule(  # input and pre-MLP norms that are modules of their own
            "layernorm",
            _layernorm,
            switches=("recompute_input_layernorm", "recompute_pre_mlp_layernorm"),
            discards_output=True,
            graph_scopes=("attn", "mlp", "moe", "moe_router"),
            frames=(
                Frames("transformer_engine/pytorch/module/layernorm.py"),
                Frames("transformer_engine/pytorch/module/rmsnorm.py"),
                Frames("transformer_engine/pytorch/ops/basic/layer_norm.py"),
                Frames("transformer_engine/pytorch/ops/basic/rmsnorm.py"),
                Frames("megatron/core/transformer/torch_norm.py"),
                Frames("megatron/core/fusions/fused_layer_norm.py"),
                Frames("torch/nn/modules/normalization.py"),
            ),
        ),
        RecomputeModule(  # the dense feed-forward block
            "mlp",
            lambda layers: (
                len(layers.kinds) - layers.moe or "every layer is an MoE layer; mlp covers dense layers only"
            ),
            switches=("recompute_mlp",),
            graph_scopes=("mlp",),
            flops=("mlp",),
            frames=(Frames("megatron/core/transformer/mlp.py"),),
        ),
        RecomputeModule(  # router, dispatch, experts, combine and shared experts
            "moe",
            _moe,
            switches=("mlp.moe_layer_recompute",),
            graph_scopes=("moe",),
            flops=("experts", "shared_experts"),
            frames=(Frames(_MOE_LAYER),),
        ),
        RecomputeModule(  # the activation function of the experts
            "moe_act",
            _moe_act,
            switches=("mlp.experts.activation_recompute",),
            discards_output=True,
            inside="moe",
            graph_scopes=("moe",),
            frames=(Frames(f"{_MOE_LAYER}experts.py", ("bias_act_func", "activation_func_with_probs", "glu")),),
        ),
        RecomputeModule(
            "shared_experts",
            _shared_experts,
            switches=("mlp.shared_experts_recompute",),
            part="mlp.shared_experts",
            inside="moe",
            graph_scopes=("moe", "moe_router"),  # the router graph runs the shared experts
            flops=("shared_experts",),
            frames=(Frames(f"{_MOE_LAYER}shared_experts.py"),),
        ),
        RecomputeModule(  # up-projections and RoPE of multi-latent attention
            "mla_up_proj",
            lambda layers: len(layers.kinds) if layers.spec.model.mla else "the model has no multi-latent attention",
            switches=("self_attention.recompute_up_proj",),
            discards_output=True,
            graph_scopes=("attn",),
            flops=("mla_up_proj",),
            frames=(
                Frames(
                    "megatron/core/transformer/multi_latent_attention.py",
                    ("qkv_up_proj_and_rope_apply", "qkv_up_proj_and_rope_apply_for_cached_latent_kv"),
                ),
            ),
        ),
        RecomputeModule(  # the output norm of a gated delta net
            "gdn_norm_out",
            lambda layers: layers.delta_nets or "the model has no gated delta net layer",
            switches=("self_attention.recompute_norm_out",),
            discards_output=True,
            since_mcore="0.19",
        ),
    )
}
"""By the name that megatron-core gives it."""

_MAIN = "Megatron-LM's main branch of August 2026 (d98e8a6)"
UPSTREAM = dict.fromkeys(("mhc", "gdp_qkv", "gdp_in_proj"), _MAIN) | {
    "gdn": "June 2026 (https://github.com/NVIDIA/Megatron-LM/pull/5296)"
}
"""Modules that no release of megatron-core has which mbr-perf knows, and since when Megatron-LM has them."""
