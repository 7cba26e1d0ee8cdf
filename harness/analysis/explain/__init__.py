"""Why two sides differ."""
