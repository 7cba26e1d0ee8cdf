"""What is asked: frozen values in megatron-core's own field names; no I/O, no environment, no torch."""
