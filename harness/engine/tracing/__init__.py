"""The no-GPU tracer: real megatron-core modules on tensors without data, every allocation and operation recorded."""
