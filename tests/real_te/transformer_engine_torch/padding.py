"""Rows padded for FP8 (csrc/extensions/padding.cpp)."""


def fused_multi_row_padding(input, output, *_rows):
    """Written into ``output``."""


def fused_multi_row_unpadding(input, output, *_rows):
    """Written into ``output``."""
