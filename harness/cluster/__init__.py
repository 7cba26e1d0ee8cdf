"""Slurm: batch files, states, commands, and many runs as jobs."""
