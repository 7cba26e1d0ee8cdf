"""Metrics, gates, likeness and promotion. oom/ finds out why memory ran out."""
