"""Base of all layers."""
