"""Recipes: YAML files of models and operating points, and their resolution with options into an ExperimentSpec."""
