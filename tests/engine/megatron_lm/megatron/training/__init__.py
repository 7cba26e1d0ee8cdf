"""The part of Megatron-LM's training that calls the model provider, as its `get_model` does."""

import json
import sys

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_block import TransformerBlock
from torch.testing._internal.distributed.fake_pg import FakeStore


def pretrain(_datasets, model_provider, _model_type, _forward_step, args_defaults=None):
    sys.stdout.write(json.dumps([recomputed(chunk) for chunk in build(model_provider)]))


def build(model_provider):
    pp, vp, _, stage = map(int, sys.argv[1:5])
    dist.init_process_group("fake", store=FakeStore(), rank=stage, world_size=pp)
    interleaved = {"virtual_pipeline_model_parallel_size": vp} if vp > 1 else {}
    parallel_state.initialize_model_parallel(1, pp, create_gloo_process_groups=False, **interleaved)
    of_chunks = [{"vp_stage": chunk} for chunk in range(vp)] if vp > 1 else [{}]
    return [
        model_provider(
            pre_process=stage == 0 and not each.get("vp_stage"),
            post_process=stage == pp - 1 and each.get("vp_stage", vp - 1) == vp - 1,
            **each,
        )
        for each in of_chunks
    ]


def recomputed(chunk):
    (block,) = (module for module in chunk.modules() if isinstance(module, TransformerBlock))
    assert chunk.config.recompute_granularity is None
    is_full = block.config.recompute_granularity == "full" and block.config.recompute_method == "block"
    num_full = block.config.recompute_num_layers if is_full else 0
    return ["full" if at < num_full else _setting(layer) for at, layer in enumerate(block.layers)]


def _setting(layer):
    acts = {
        "core_attn": layer.self_attention.checkpoint_core_attention,
        "layernorm": layer.recompute_input_layernorm and layer.recompute_pre_mlp_layernorm,
        "mlp": layer.recompute_mlp,
    }
    return ",".join(name for name, is_on in acts.items() if is_on) or "none"
