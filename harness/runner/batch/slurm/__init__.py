"""Batches and runs as Slurm jobs."""
