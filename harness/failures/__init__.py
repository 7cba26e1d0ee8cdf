"""Finds out why a job ran out of memory, from its log and records."""
