"""Names of what a sweep can vary: short and long names of options, ``env.NAME`` and ``section.field``."""

import re
from dataclasses import fields

from harness.errors import BadRequestError, nearest
from harness.recipes.recipe import Request
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
    "ol": "activation_offload_layers",
    "ms": "max_steps",
    "c": "compute_dtype",
    "cv": "variant",
    "gn": "gpus_per_node",
}
"""Short names, as of the options, and the field of a `Request` that each stands for."""

_OF_ONE_RECIPE, _OF_ONE_GPU = "one sweep compares settings of one recipe", "one sweep runs on one kind of GPU"
_AS_RECOMPUTE = "write --over recompute='none; core_attn,mlp; full:uniform:1'"
NO_AXIS = {
    "model_recipe_name": _OF_ONE_RECIPE,
    "model_family_name": _OF_ONE_RECIPE,
    "recipes_dir": _OF_ONE_RECIPE,
    "gpu": _OF_ONE_GPU,
    "point_gpu": _OF_ONE_GPU,
    "env": "write --over env.NAME=VALUE",
    "set_values": "write --over SECTION.FIELD=VALUE",
    "recompute_modules": _AS_RECOMPUTE,
    "recompute_num_layers": _AS_RECOMPUTE,
    "recompute_granularity": _AS_RECOMPUTE,
    "recompute_method": _AS_RECOMPUTE,
    "distribute_saved_activations": _AS_RECOMPUTE,
}
"""Fields of a `Request` that are not varied, and what to do instead."""

RECOMPUTE_OPTIONS = ("recompute", *(name for name, instead in NO_AXIS.items() if instead is _AS_RECOMPUTE))
"""Fields of a `Request` that say something about recompute."""

OPTION_NAMES = tuple(field.name for field in fields(Request) if field.name not in NO_AXIS)
"""Long names of the options that can be varied."""

_ENV = re.compile(r"env\.[A-Za-z_][A-Za-z0-9_]*")


def require_axis(name: str) -> None:
    """BadRequestError with the nearest name for a name that nothing is varied by."""
    known = (*SHORT_NAMES, *OPTION_NAMES, *settable_paths())
    if name not in known and not _ENV.fullmatch(name):
        raise BadRequestError(f"{name!r} cannot be varied", remedy=_remedy(name))


def _remedy(name: str) -> str:
    if name in NO_AXIS:
        return NO_AXIS[name]
    if name.startswith("env."):
        return "after env. comes the name of a variable: letters, digits and _"
    if "." in name:
        near = nearest(name, settable_paths())
        return near if near.startswith("did you mean") else "recipes/README.md names all settings"
    return nearest(name, (*SHORT_NAMES, *OPTION_NAMES))


# Names of `--over`, and the option each stands for.
SIZES = {name: SHORT_NAMES[name] for name in ("tp", "pp", "vp", "cp", "ep", "et", "mb", "gb", "sl", "ng")}
SWEPT = SIZES | {"vpp": SIZES["vp"], "mbs": SIZES["mb"], "gbs": SIZES["gb"]}
