"""Launch plans, the environment of ranks, and the supervision of launched processes."""
