"""The other world: the only package that imports torch, megatron-core, transformer-engine and NVML."""
