"""Slurm jobs of mbr-perf."""
