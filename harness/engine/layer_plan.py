"""Sets a plan of recompute on built layers; megatron-core itself knows one setting for all."""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_layer import TransformerLayer

from harness.experiment.recompute_plan import FULL


class OtherLayoutError(RuntimeError):
    """The built layers are not those that the plan was made for."""


def set_plan(chunks: Sequence, of_stage: Sequence[Sequence[str]]) -> None:
    """Set ``of_stage[chunk][layer]``, the settings of this rank's layers, MTP layers last.

    The model was built without recompute. OtherLayoutError for another number of chunks or layers.
    """
    layers = [[m for m in chunk.modules() if isinstance(m, TransformerLayer)] for chunk in chunks]
    built, planned = [len(each) for each in layers], [len(each) for each in of_stage]
    if built != planned:
        raise OtherLayoutError(f"the plan is for chunks of {planned} layers; this rank built {built}")
    for chunk, own, settings in zip(chunks, layers, of_stage, strict=True):
        for layer, setting in zip(own, settings, strict=True):
            for module in () if setting in ("none", FULL) else setting.split(","):
                _SET[module](layer)
        if num_full := list(settings).count(FULL):
            _checkpoint_first((m for m in chunk.modules() if isinstance(m, TransformerBlock)), num_full)


def _checkpoint_first(blocks: Iterable, num_layers: int) -> None:
    """Let the decoder checkpoint its first layers: each block gets a configuration of its own."""
    block = next(iter(blocks))
    block.config = copy.copy(block.config)
    block.config.recompute_granularity, block.config.recompute_method = "full", "block"
    block.config.recompute_num_layers = num_layers


def _norms(layer) -> None:
    """As `TransformerLayer.__init__` does for all layers, with what FP8 needs."""
    quantized = layer.config.fp8 or layer.config.fp4
    if not isinstance(layer.input_layernorm, IdentityOp):
        layer.recompute_input_layernorm = True
        if quantized:
            layer.self_attention.set_for_recompute_input_layernorm()
    if not isinstance(layer.pre_mlp_layernorm, IdentityOp):
        layer.recompute_pre_mlp_layernorm = True
        if quantized and layer.is_moe_layer:
            layer.mlp.set_for_recompute_pre_mlp_layernorm()
        elif quantized:
            _save_original_input(layer.mlp.linear_fc1)


def _experts_activation(layer) -> None:
    if layer.is_moe_layer:
        layer.mlp.experts.activation_recompute = True
        if layer.config.fp8 or layer.config.fp4:
            _save_original_input(layer.mlp.experts.linear_fc2)


def _save_original_input(linear) -> None:
    from megatron.core.extensions.transformer_engine import set_save_original_input

    set_save_original_input(linear)


def _switch(path: str, applies: Callable = lambda _layer: True) -> Callable:
    """Return what turns an attribute on, where it applies."""
    *parts, name = path.split(".")

    def turn_on(layer) -> None:
        if applies(layer):
            setattr(reduce(getattr, parts, layer), name, True)

    return turn_on


_SET: dict[str, Callable] = {
    "core_attn": _switch(
        "self_attention.checkpoint_core_attention", lambda layer: hasattr(layer.self_attention, "core_attention")
    ),
    "layernorm": _norms,
    "mlp": _switch("recompute_mlp", lambda layer: not layer.is_moe_layer),
    "moe": _switch("mlp.moe_layer_recompute", lambda layer: layer.is_moe_layer),
    "moe_act": _experts_activation,
    "shared_experts": _switch(
        "mlp.shared_experts_recompute", lambda layer: layer.is_moe_layer and layer.mlp.shared_experts is not None
    ),
    "mla_up_proj": _switch("self_attention.recompute_up_proj"),
    "gdn_norm_out": _switch(
        "self_attention.recompute_norm_out", lambda layer: hasattr(layer.self_attention, "recompute_norm_out")
    ),
}
"""By module, as in `harness.experiment.modules`."""
