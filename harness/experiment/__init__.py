"""Describes a request as frozen values with megatron-core's names."""
