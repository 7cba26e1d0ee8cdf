"""Golden files of Megatron-LM and Megatron-Bridge."""
