"""A job for the scripted Megatron-Bridge in tests/engine/scripted_bridge: two small layers, one pipeline stage."""

from pathlib import Path

PACKAGE = Path(__file__).parent / "engine" / "scripted_bridge"


def container(**train):
    """Return the `ConfigContainer`; ``train`` changes its section of that name."""
    return {
        "_target_": "megatron.bridge.training.config.ConfigContainer",
        "checkpoint": {"save": "/nowhere", "load": None},
        "ddp": {},
        "dist": {"distributed_backend": "nccl"},
        "logger": {"log_interval": 2, "tensorboard_dir": "/nowhere"},
        "model": {
            "_target_": "megatron.bridge.models.gpt_provider.GPTModelProvider",
            "num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 64, "num_attention_heads": 4, "vocab_size": 64,
            "seq_length": 16, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
            "recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None,
            "recompute_modules": None, "distribute_saved_activations": False, "gradient_accumulation_fusion": False,
        },
        "optimizer": {"lr": 1e-3},
        "scheduler": {"lr_warmup_iters": 50, "lr_decay_iters": None},
        "train": {"train_iters": 100, "global_batch_size": 2, "micro_batch_size": 1, "eval_iters": 32} | train,
    }  # fmt: skip
