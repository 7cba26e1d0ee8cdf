"""Logs and golden values that Megatron-Bridge and Megatron-LM wrote, read into values with one set of units."""
