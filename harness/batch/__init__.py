"""One engine for many runs."""
