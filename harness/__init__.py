"""mbr-perf: predict, measure, judge and explain activation-recompute settings on megatron-core."""

__version__ = "0.1.0"
