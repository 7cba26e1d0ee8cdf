"""Start it: launch plans as values, the environment of ranks, and the supervision of what was started."""
