"""A log against a golden file."""
