"""A foreign training log as a run record: its ranks, its end, its figures beside ours."""
