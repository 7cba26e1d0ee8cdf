"""Slurm from the outside: the batch file as a value, the commands that submit and ask, what their answers mean."""
