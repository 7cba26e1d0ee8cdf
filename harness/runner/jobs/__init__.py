"""Jobs of a cluster, seen from where they were submitted."""
