"""Sweeps: planned, run, resumed, judged."""
