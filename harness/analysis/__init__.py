"""Judge: from raw records to figures, and from figures to a verdict."""
