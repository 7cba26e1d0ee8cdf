"""`mbr-perf bisect`: the commit that made a case slower, larger, or recompute something else."""

LEAST_RUNS, MAX_RUNS, MOST_RUNS = 8, 150, 1000
"""The least, the default and the largest value of --max_runs: a bisect by time ends undecided after that many runs.

They are here because the option's help must not load numpy."""
