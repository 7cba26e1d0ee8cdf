"""Compares the flash-like attention with megatron-core's own, forward and backward, on one rank without CUDA.

Usage: core_attention.py OUT.json. Writes case -> the largest differences of output and gradients, and refusal -> text.
"""

# ruff: noqa: E402 (megatron-core must be imported after transformer-engine is blocked)
import json
import sys
import warnings
from pathlib import Path

from harness.engine import cpu_backend

cpu_backend.block_transformer_engine()
warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig

cpu_backend.install()

from harness.engine.model import FlashCoreAttention, UnfusedCoreAttention

SEQ, BATCH = 48, 2
# Heads, key/value groups, channels of q and k, channels of v, scale (None: 1/sqrt of the channels).
CASES = {
    "multi-head": (4, 4, 16, 16, None),
    "grouped queries": (8, 2, 16, 16, None),
    "one group": (4, 1, 16, 16, None),
    "own scale": (4, 2, 16, 16, 0.3),
    "latent attention": (4, 4, 24, 16, 0.2),
}


def attention(kind, heads, groups, qk, v, scale):
    config = TransformerConfig(num_layers=1, hidden_size=heads * qk, num_attention_heads=heads, kv_channels=qk,
                               num_query_groups=groups, attention_dropout=0.0)  # fmt: skip
    return kind(config=config, layer_number=1, attn_mask_type=AttnMaskType.causal, attention_type="self",
                softmax_scale=scale, k_channels=qk, v_channels=v)  # fmt: skip


def results(kind, case, mask):
    """Output, then the gradients of q, k and v under the same random upstream gradient."""
    heads, groups, qk, v, _ = case
    generator = torch.Generator().manual_seed(1)
    sizes = ((heads, qk), (groups, qk), (groups, v))
    inputs = [torch.randn(SEQ, BATCH, n, d, generator=generator).requires_grad_() for n, d in sizes]
    output = attention(kind, *case)(*inputs, mask)
    output.backward(torch.randn(output.shape, generator=torch.Generator().manual_seed(2)))
    return [output.detach(), *(x.grad for x in inputs)]


def refusals():
    refused = {}
    for name, mask, context_parallel_size in (("mask", AttnMaskType.padding, 1), ("context", AttnMaskType.causal, 2)):
        config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4)
        config.context_parallel_size = context_parallel_size
        try:
            FlashCoreAttention(config=config, layer_number=1, attn_mask_type=mask, attention_type="self")
        except ValueError as error:
            refused[name] = str(error)
    return refused


def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    causal = torch.triu(torch.ones(1, 1, SEQ, SEQ, dtype=torch.bool), 1)
    differences = {}
    for name, case in CASES.items():
        flash, unfused = results(FlashCoreAttention, case, None), results(UnfusedCoreAttention, case, causal)
        pairs = zip(("output", "dq", "dk", "dv"), flash, unfused, strict=True)
        differences[name] = {
            what: {"difference": float((a - b).abs().max()), "size": float(b.abs().max()), "shape": list(a.shape)}
            for what, a, b in pairs
        }
    Path(sys.argv[1]).write_text(json.dumps({"differences": differences, "refusals": refusals()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
