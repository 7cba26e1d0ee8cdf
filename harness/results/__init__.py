"""Results on disk: list, show, archive, check."""
