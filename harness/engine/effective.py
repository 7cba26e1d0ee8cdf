"""Reads back from built layers what will be recomputed."""

from collections import Counter

from megatron.core.transformer.transformer_block import TransformerBlock

from harness.records.rank import LayerRecompute

# Where each module's flag ends up in megatron-core: path from the layer, attribute.
FLAGS = {
    "core_attn": (("self_attention", "checkpoint_core_attention"),),
    "layernorm": (("", "recompute_input_layernorm"), ("", "recompute_pre_mlp_layernorm")),
    "mlp": (("", "recompute_mlp"),),
    "moe": (("mlp", "moe_layer_recompute"),),
    "shared_experts": (("mlp", "shared_experts_recompute"),),
    "moe_act": (("mlp.experts", "activation_recompute"),),
    "mla_up_proj": (("self_attention", "recompute_up_proj"),),
}


def read_back(chunks, config) -> LayerRecompute:
    """Count the decoder layers of this rank that carry each active flag; full recompute is the block's own."""
    counts: Counter[str] = Counter()
    num_layers = full_layers = 0
    for chunk in chunks:
        for block in (m for m in chunk.modules() if isinstance(m, TransformerBlock)):
            num_layers += len(block.layers)
            full_layers += _full_layers(len(block.layers), config)
            for layer in block.layers:
                counts.update(_active(layer, config))
    return LayerRecompute(num_layers=num_layers, modules=dict(sorted(counts.items())), full_layers=full_layers)


def _active(layer, config) -> list[str]:
    if config.recompute_granularity != "selective":
        return []
    return [name for name, places in FLAGS.items() if any(_flag(layer, path, attr) for path, attr in places)]


def _flag(layer, path: str, attribute: str) -> bool:
    owner = layer
    for part in path.split(".") if path else ():
        owner = getattr(owner, part, None)
    # shared_experts_recompute is set on every MoE layer, also on those without shared experts
    if attribute == "shared_experts_recompute" and getattr(owner, "shared_experts", None) is None:
        return False
    return bool(getattr(owner, attribute, False))


def _full_layers(num_layers: int, config) -> int:
    if config.recompute_granularity != "full":
        return 0
    return num_layers if config.recompute_method == "uniform" else min(config.recompute_num_layers, num_layers)
