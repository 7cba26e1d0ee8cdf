"""What is asked: frozen values in megatron-core's names."""
