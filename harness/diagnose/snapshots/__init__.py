"""Memory snapshots of torch."""
