"""`mbr-perf bisect`: the commit that made a case slower, larger, or recompute something else."""
