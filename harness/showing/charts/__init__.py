"""Charts as static pictures."""
