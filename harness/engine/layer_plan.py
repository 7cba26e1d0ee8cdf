"""Sets recompute by layer on the built layers of megatron-core, which itself knows one setting for all.

With Megatron-LM start this file in place of pretrain_gpt.py, in its folder, with the same arguments but those of
recompute. With Megatron-Bridge call `config.model.register_pre_wrap_hook(pre_wrap_hook)` before you train. Both need a
job without recompute and CUDA graphs, and the layout that the plan was made for; anything else is an OtherLayoutError.
"""

import copy
import runpy
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

from megatron.core import parallel_state
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_layer import TransformerLayer

# PLAN[stage][chunk]: how many layers in a row have which setting, MTP layers last.
Plan = tuple[tuple[tuple[tuple[int, str], ...], ...], ...]
PLAN: Plan = ()


class OtherLayoutError(RuntimeError):
    """The job or its built layers are not those that the plan was made for."""


def main() -> None:
    """Run Megatron-LM's pretrain_gpt.py with a model provider that sets the plan."""
    import megatron.training

    pretrain = megatron.training.pretrain

    def pretrain_by_plan(datasets, model_provider, *rest, **options):
        return pretrain(datasets, provider_with_plan(model_provider), *rest, **options)

    megatron.training.pretrain = pretrain_by_plan
    sys.path.insert(0, "")
    runpy.run_path("pretrain_gpt.py", run_name="__main__")


def provider_with_plan(model_provider: Callable) -> Callable:
    """Return a model provider of Megatron-LM that also sets the plan on the chunk that it builds."""

    def build(*arguments, **options):
        chunk = model_provider(*arguments, **options)
        set_chunk(chunk, settings_of_rank(chunk.config)[options.get("vp_stage") or 0])
        return chunk

    return build


def pre_wrap_hook(chunks: Sequence) -> Sequence:
    """Set the plan on the chunks that Megatron-Bridge has built, and return them."""
    set_plan(chunks, settings_of_rank(chunks[0].config))
    return chunks


def settings_of_rank(config) -> list[list[str]]:
    """Return the setting of each layer of this rank, by chunk. OtherLayoutError for another job."""
    pp, vp = parallel_state.get_pipeline_model_parallel_world_size(), config.virtual_pipeline_model_parallel_size or 1
    if (pp, vp) != (len(PLAN), len(PLAN[0])):
        raise OtherLayoutError(f"the plan is for PP {len(PLAN)}, VP {len(PLAN[0])}; this job has PP {pp}, VP {vp}")
    if config.recompute_granularity is not None:
        raise OtherLayoutError("the plan sets recompute by layer; start the job without recompute")
    if getattr(config, "cuda_graph_impl", "none") != "none":
        raise OtherLayoutError("CUDA graphs capture layers without the plan; start the job without them")
    stage = PLAN[parallel_state.get_pipeline_model_parallel_rank()]
    return [[setting for layers, setting in chunk for _ in range(layers)] for chunk in stage]


def set_plan(chunks: Sequence, of_stage: Sequence[Sequence[str]]) -> None:
    """Set ``of_stage[chunk][layer]``, the settings of this rank's layers, MTP layers last. OtherLayoutError."""
    if len(chunks) != len(of_stage):
        raise OtherLayoutError(f"the plan is for {len(of_stage)} chunks; this rank built {len(chunks)}")
    for chunk, settings in zip(chunks, of_stage, strict=True):
        set_chunk(chunk, settings)


def set_chunk(chunk, settings: Sequence[str]) -> None:
    """Set the settings of a chunk's layers. OtherLayoutError for another number of layers."""
    layers = [module for module in chunk.modules() if isinstance(module, TransformerLayer)]
    if len(layers) != len(settings):
        raise OtherLayoutError(f"the plan is for a chunk of {len(settings)} layers; this rank built {len(layers)}")
    for layer, setting in zip(layers, settings, strict=True):
        for module in () if setting in ("none", "full") else setting.split(","):
            _SET[module](layer)
    if num_full := list(settings).count("full"):
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

    set_save_original_input(getattr(linear, "linear", linear))  # below an adapter


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
"""By module of recompute."""

if __name__ == "__main__":
    main()
