"""Training logs of Megatron-LM and Megatron-Bridge."""
