"""Snapshots of torch's CUDA allocator: what they hold, where it came from, and how two of them differ."""
