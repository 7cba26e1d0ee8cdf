"""Builds a model with megatron-core's own builders, by the calls of Megatron-LM's program of this name.

Usage: pretrain_gpt.py PP VP LAYERS STAGE RECOMPUTE; prints what each built layer of each chunk recomputes, as JSON.
"""

import sys
from functools import partial

from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.training import pretrain


def gpt_builder(pre_process, post_process, vp_stage):
    pp, vp, num_layers, _, recompute = (value if at == 4 else int(value) for at, value in enumerate(sys.argv[1:]))
    granularity = {"none": None}.get(recompute, recompute)
    config = TransformerConfig(
        num_layers=num_layers, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True, pipeline_dtype=float,
        pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vp if vp > 1 else None,
        recompute_granularity=granularity, recompute_method=granularity and "uniform",
        recompute_num_layers=granularity and 1,
    )  # fmt: skip
    return GPTModel(config, get_gpt_layer_local_spec(), 128, 32, pre_process, post_process, vp_stage=vp_stage)


def model_provider(model_builder, pre_process=True, post_process=True, vp_stage=None):
    return model_builder(pre_process, post_process, vp_stage)


if __name__ == "__main__":
    pretrain(None, partial(model_provider, gpt_builder), None, None, args_defaults={})
