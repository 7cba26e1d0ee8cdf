"""Golden values: promote, list, show, export."""
