"""Memory snapshots, read in a process of their own."""
