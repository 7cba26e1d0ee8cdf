"""A scripted Megatron-Bridge: the parts of 0.3 that `run --engine bridge` relies on, around real megatron-core."""

from megatron.bridge.package_info import __version__ as __version__
