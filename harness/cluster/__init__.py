"""Jobs of Slurm and Kubernetes: submits, watches and collects them, and does their part on each node."""
