"""Every module that an agent and a rank import, by the time the rank has trained: what a warm parent imports once.

A test compares: what a rank still imports by itself costs every launch anew.
"""

from importlib import import_module, metadata

import torch.distributed.run  # noqa: F401

import harness.engine.agent
import harness.engine.rank_run  # noqa: F401
from harness.experiment.software import parse_version

# Module, the release since which functions of megatron-core import it at their first call, and where.
_LATE = (
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
