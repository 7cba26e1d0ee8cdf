"""Small requests of four kinds, and changes to them by dotted name."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import parse_recompute

SHORT = {
    "tp": "parallelism.tensor_model_parallel_size",
    "pp": "parallelism.pipeline_model_parallel_size",
    "vp": "parallelism.virtual_pipeline_model_parallel_size",
    "cp": "parallelism.context_parallel_size",
    "comm": "parallelism.cp_comm_type",
    "ep": "parallelism.expert_model_parallel_size",
    "etp": "parallelism.expert_tensor_parallel_size",
    "sp": "parallelism.sequence_parallel",
    "layout": "parallelism.pipeline_model_parallel_layout",
    "mbs": "batch.micro_batch_size",
    "gbs": "batch.global_batch_size",
    "seq": "batch.seq_length",
    "dtype": "compute_dtype",
    "impl": "kernels.transformer_impl",
    "overlap": "kernels.overlap_moe_expert_parallel_comm",
    "dispatcher": "kernels.moe_token_dispatcher_type",
    "capacity": "kernels.moe_expert_capacity_factor",
    "pad": "kernels.moe_pad_expert_input_to_capacity",
    "graph": "cuda_graph.impl",
    "scope": "cuda_graph.scope",
    "offload_layers": "offload.cpu_offloading_num_layers",
    "offload_modules": "offload.offload_modules",
    "defer": "parallelism.defer_embedding_wgrad_compute",
    "deferral_limit": "parallelism.wgrad_deferral_limit",
    "rope_fusion": "model.mla.apply_rope_fusion",
    "layers": "model.num_layers",
    "mtp": "model.mtp_num_layers",
}

DENSE: dict[str, Any] = {
    "recipe": "small", "family": "llama", "gpu": "h100", "num_gpus": 8, "gpus_per_node": 8, "compute_dtype": "bf16",
    "model": {"num_layers": 8, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 16,
              "num_query_groups": 8, "vocab_size": 32000},
    "batch": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
}  # fmt: skip
EXPERTS = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 1024}
LATENT = {"q_lora_rank": 512, "kv_lora_rank": 256, "qk_head_dim": 64, "qk_pos_emb_head_dim": 32, "v_head_dim": 64}
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "moe": {"model.moe": EXPERTS},
    "deepseek": {
        "model.moe": {
            **EXPERTS,
            "moe_shared_expert_intermediate_size": 1024,
            "moe_layer_freq": (0, 1, 1, 1, 1, 1, 1, 1),
        },
        "model.mla": LATENT,
        "model.num_query_groups": None,
    },
    "gpt-oss": {
        "model.moe": EXPERTS,
        "model.softmax_type": "learnable",
        "model.window_size": (127, 0),
        "model.window_attn_skip_freq": 2,
    },
    "qwen3-next": {"model.moe": EXPERTS, "model.linear_attention": {"linear_attention_freq": 4}},
    "cpu": {"gpu": "cpu", "num_gpus": 1, "compute_dtype": "fp32"},
    "cpu moe": {"gpu": "cpu", "num_gpus": 1, "compute_dtype": "bf16", "model.moe": EXPERTS},
}


def build(kind: str = "dense", **changes: Any) -> ExperimentSpec:
    """A legal request of ``kind`` with ``changes``: short names, or dotted ones with ``__`` for the dot."""
    fields: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in DENSE.items()}
    for name, value in {**KINDS[kind], **changes}.items():
        path = SHORT.get(name, name.replace("__", "."))
        *parents, leaf = path.split(".")
        owner = fields
        for parent in parents:
            owner[parent] = dict(owner.get(parent) or {})
            owner = owner[parent]
        owner[leaf] = parse_recompute(value) if path == "recompute" and isinstance(value, str) else value
    return ExperimentSpec.model_validate(fields)


@pytest.fixture(scope="session")
def request_for() -> Callable[..., ExperimentSpec]:
    return build
