"""The engine for many runs: sweeps, nights and repeats are plans of it."""
