"""The prediction beside a run, and what it needs."""
