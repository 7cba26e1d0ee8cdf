"""Nights: planned, run in rounds, resumed, judged."""
