"""Metrics, gates, likeness and promotion; oom/ says why memory ran out."""
