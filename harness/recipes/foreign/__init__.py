"""Configurations that other programs wrote, read into values of an ExperimentSpec without importing those programs."""
