"""Imports once, for a warm parent, every module that an agent and a trained rank import.

A test compares the lists: a module that a rank still imports itself costs time at every launch.
"""

from importlib import import_module, metadata

import torch.distributed.run  # noqa: F401

import harness.engine.agent
import harness.engine.rank_run  # noqa: F401
from harness.units import parse_version

# Module, the release since which functions import it at their first call, and where.
_LATE = (
    ("megatron.core.ssm.gated_delta_net", "0.16", "the CPU backend gives its layers kernels"),
    ("megatron.core.models.mimo", "0.19", "get_megatron_optimizer asks whether the model is of its kind"),
    (
        "megatron.core.models.gpt.experimental_attention_variant_module_specs",
        "0.20",
        "layer specs, whatever the attention",
    ),
)
_INSTALLED = parse_version(metadata.version("megatron-core"))
for _module, _since, _reason in _LATE:
    if parse_version(_since) <= _INSTALLED:
        import_module(_module)
