"""Every module that an agent and a rank import, by the time the rank has trained: what a warm parent imports once.

A test compares: what a rank still imports by itself costs every launch anew.
"""

from importlib import metadata

import torch.distributed.run  # noqa: F401

import harness.engine.agent
import harness.engine.rank_run  # noqa: F401
from harness.spec.software import parse_version

if parse_version(metadata.version("megatron-core")) >= parse_version("0.19"):
    import megatron.core.models.mimo  # noqa: F401 (get_megatron_optimizer asks whether the model is of its kind)
