"""Names of what a sweep can vary: short and long names of options, ``env.NAME`` and ``section.field``."""

import re
from dataclasses import fields

from harness.errors import BadRequestError
from harness.recipes.problems import nearest
from harness.recipes.request import Request
from harness.recipes.settings import settable_paths

SHORT_NAMES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "et": "expert_tensor_parallel_size",
    "mb": "micro_batch_size",
    "gb": "global_batch_size",
    "sl": "seq_length",
    "ng": "num_gpus",
    "rl": "recompute_num_layers",
    "ol": "activation_offload_layers",
}
"""Short names, as of the options, and the field of a `Request` that each stands for."""

_WHAT_IS_SWEPT = {"model_recipe_name", "model_family_name", "gpu", "point_gpu", "env", "set_values", "recipes_dir"}

OPTION_NAMES = tuple(field.name for field in fields(Request) if field.name not in _WHAT_IS_SWEPT)
"""Long names of the options that can be varied."""

_ENV = re.compile(r"env\.[A-Za-z_][A-Za-z0-9_]*")


def require_axis(name: str, place: str) -> None:
    """BadRequestError with the nearest name, opened by ``place``, for a name that nothing is varied by."""
    known = (*SHORT_NAMES, *OPTION_NAMES, *settable_paths())
    if name not in known and not _ENV.fullmatch(name):
        raise BadRequestError(f"{place}: {name!r} cannot be varied", remedy=_remedy(name))


def _remedy(name: str) -> str:
    if name.startswith("env."):
        return "after env. comes the name of a variable: letters, digits and _"
    if "." in name:
        near = nearest(name, settable_paths())
        return near if near.startswith("did you mean") else "recipes/README.md names all settings"
    return nearest(name, (*SHORT_NAMES, *OPTION_NAMES))
