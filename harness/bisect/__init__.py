"""`mbr-perf bisect`: the commit that made a case slower, larger, or recompute something else."""

ENDS = (False, True, True, False, False, True, True, False)
"""The first runs by time: good (False), bad, and each under a second label: G B B' G' G' B' B G.

A drift of the machine affects all four equally."""

MAX_RUNS, MOST_RUNS = 150, 1000
"""Runs after which a bisect by time ends undecided: the default of --max_runs, and its largest value."""
