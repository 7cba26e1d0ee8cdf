"""What there is to ask for: recipes, suites, sweeps and rules."""
