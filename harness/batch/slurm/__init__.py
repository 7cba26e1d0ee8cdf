"""Many runs as Slurm jobs."""
