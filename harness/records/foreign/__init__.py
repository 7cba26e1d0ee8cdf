"""Training logs and golden values of Megatron-Bridge and Megatron-LM: what they say, as values."""
