"""Stand-in for transformer-engine: allocates and saves what release 2.11 does, computes nothing.

Facts are those of the Python sources of 2.11.0. Names that it does not export are absent here too.
"""

from transformer_engine import common, pytorch

__version__ = "2.11.0"
__all__ = ["common", "pytorch"]
