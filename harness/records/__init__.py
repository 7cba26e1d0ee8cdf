"""Schemas of rank, run and golden records, and the store that keeps them."""
