"""Judging logs of Megatron-Bridge and Megatron-LM by golden values of theirs."""
