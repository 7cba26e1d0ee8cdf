"""Predict: FLOPs, memory and time of a request, without a GPU."""
