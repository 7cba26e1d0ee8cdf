"""Why predictions of published runs are off where they are. Nothing was tuned to them."""

MEGATRON_LM = (
    "with pipeline parallelism, 4 to 15 MB too low: messages between stages and the attention mask that Megatron-LM's data "
    "loader makes; half a per cent of these small models, nothing on models that fill a GPU",
    "with experts: the router of an untrained model spreads tokens unevenly; the middle of a prediction is even, its range "
    "is not",
)
OTHER = (
    "context parallelism: one more tensor of the size of Q stays per layer than the stand-in for transformer-engine's ring "
    "attention keeps (0.8 GB in 73 GB, 3.2 GB in 121 GB); which one was not found",
)
