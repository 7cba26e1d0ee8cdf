"""Stand-in for transformer-engine: allocates and saves what release 2.11 does, computes nothing.

Only a tracing process puts it on ``sys.path``. Facts are those of the Python sources of transformer-engine 2.11.0;
every tensor that a layer saves says why. Names that 2.11 does not export are absent here too, since megatron-core asks
for them.
"""

from transformer_engine import common, pytorch

__version__ = "2.11.0"
__all__ = ["common", "pytorch"]
