"""`mbr-perf bisect`: the commit that made a case slower, larger, or recompute something else."""

MAX_RUNS, MOST_RUNS = 150, 1000
"""The default and the largest value of --max_runs: a bisect by time ends undecided after that many runs.

They are here because the option's help must not load numpy."""
