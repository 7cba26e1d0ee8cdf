"""What megatron-core refuses, ignores or gets wrong, as a table."""
