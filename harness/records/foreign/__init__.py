"""Reads training logs and golden values of Megatron-Bridge and Megatron-LM."""
