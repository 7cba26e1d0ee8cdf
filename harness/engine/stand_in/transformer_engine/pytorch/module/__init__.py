"""Base of all layers."""

from transformer_engine.pytorch.module import base

__all__ = ["base"]
