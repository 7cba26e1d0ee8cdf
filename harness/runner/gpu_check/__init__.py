"""Proof on a real GPU: every legal recompute setting trained, memory readings in order, an OOM survived."""
