"""Holds a table of what megatron-core refuses, ignores or gets wrong."""
