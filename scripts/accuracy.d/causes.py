"""Why predictions of published runs are off where they are. Nothing was tuned to them."""

_MASK = (
    "Megatron-LM's data loader makes an attention mask of batch times sequence squared bytes (4 MB in the small models, 134 MB "
    "in GPT-7B), which stays alive once or, with pipeline parallelism, up to three times; runs of this harness make none"
)
_ROUTING = "with experts: the router of an untrained model spreads tokens unevenly; the middle of a prediction is even, its range is not"

MEGATRON_LM = (
    _MASK,
    "with pipeline parallelism, some messages between stages outlive the step: 4 to 12 MB in these small models",
    _ROUTING,
)
OTHER = (
    _MASK,
    _ROUTING,
    "context parallelism: one more tensor of the size of Q stays per layer than the stand-in for transformer-engine's ring "
    "attention keeps (0.8 GB in 73 GB, 3.2 GB in 121 GB); which one was not found",
)
