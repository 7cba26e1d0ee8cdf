"""A tiny Llama as a Bridge recipe function."""


def tiny_llama_config():
    import torch
    from megatron.bridge.models.gpt_provider import GPTModelProvider, local_layer_spec
    from megatron.bridge.recipes.common import _pretrain_common

    cfg = _pretrain_common()
    cfg.model = GPTModelProvider(
        normalization="RMSNorm",
        activation_func=torch.nn.functional.silu,
        gated_linear_unit=True,
        position_embedding_type="rope",
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        share_embeddings_and_output_weights=False,
        num_layers=4,
        hidden_size=256,
        ffn_hidden_size=896,
        num_attention_heads=8,
        num_query_groups=2,
        kv_channels=32,
        vocab_size=2048,
        seq_length=256,
        transformer_impl="local",
        apply_rope_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        use_cpu_initialization=True,
        pipeline_model_parallel_size=2,
        cross_entropy_fusion_impl="native",
        pipeline_dtype=torch.float32,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        cross_entropy_loss_fusion=False,
        bf16=False,
        params_dtype=torch.float32,
        autocast_dtype=torch.float32,
        rotary_base=500000,
    )
    cfg.model.transformer_layer_spec = local_layer_spec
    cfg.mixed_precision = None
    cfg.optimizer.bf16 = False
    cfg.optimizer.params_dtype = torch.float32
    cfg.train.train_iters = 20
    cfg.train.global_batch_size = 4
    cfg.train.micro_batch_size = 1
    cfg.dataset.seq_length = 256
    cfg.dataset.num_workers = 0
    cfg.dataset.persistent_workers = False
    cfg.tokenizer.tokenizer_type = "NullTokenizer"
    cfg.tokenizer.vocab_size = 2048
    cfg.dist.distributed_backend = "gloo"
    cfg.ddp.overlap_grad_reduce = False
    cfg.ddp.overlap_param_gather = False
    cfg.ddp.average_in_collective = False
    cfg.scheduler.lr_warmup_iters = 1
    cfg.logger.log_interval = 1
    return cfg
