"""Why two results differ."""
