"""Judge of a sweep: cells, the Pareto set, the recommendation."""
