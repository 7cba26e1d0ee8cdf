"""Recompute settings against a control."""
