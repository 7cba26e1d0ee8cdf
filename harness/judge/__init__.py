"""Metrics, gates, likeness and promotion."""
