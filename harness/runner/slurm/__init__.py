"""Runs inside a Slurm job, and their submission."""
