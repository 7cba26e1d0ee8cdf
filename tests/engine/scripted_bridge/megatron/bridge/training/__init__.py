"""As in Megatron-Bridge."""
