"""The commands `run` and `check`."""
