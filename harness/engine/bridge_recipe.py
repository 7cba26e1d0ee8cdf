"""Writes the configuration of a recipe function of Megatron-Bridge: ``FUNCTION NUM_GPUS FILE``.

Where this machine has no GPU to ask, the file stays as the function made it; the ranks finalise it in any case.
"""

import os
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from harness.engine.process import die_with_parent, run_and_end
from harness.errors import nearest

_PACKAGES = ("megatron.bridge.perf_recipes", "megatron.bridge.recipes")


def main() -> int:
    """Write the file. An error's last line goes to stderr."""
    die_with_parent()
    name, num_gpus, path = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    os.environ.update(WORLD_SIZE=num_gpus, RANK="0", LOCAL_RANK="0")
    import torch
    from megatron.bridge.training.config import runtime_config_update

    function = found(name)
    config = function()
    if torch.cuda.is_available():
        runtime_config_update(config)
    hooks = [each for each in ("pre_wrap_hook", "post_wrap_hook") if getattr(config.model, each, None)]
    if hooks:
        raise ValueError(f"{name} registers a {hooks[0]}, which the file for the ranks cannot hold: leave it out")
    temporary = path.with_suffix(".tmp")
    config.to_yaml(str(temporary))
    temporary.replace(path)
    return 0


def found(name: str) -> Callable:
    """Return the function: ``module:name``, or a name in Bridge's packages of recipes. LookupError names near ones."""
    module, _, own = name.rpartition(":")
    if module:
        return getattr(import_module(module), own)
    known: dict[str, Callable] = {}
    for package in _PACKAGES:
        try:
            root = import_module(package)
        except ModuleNotFoundError as missing:
            if missing.name != package:
                raise
            continue  # 0.3 has no perf_recipes
        if hasattr(root, name):
            return getattr(root, name)
        for each in pkgutil.walk_packages(root.__path__, f"{package}."):
            functions = vars(import_module(each.name))
            known |= {key: value for key, value in functions.items() if key.endswith("_config") and callable(value)}
    if name in known:
        return known[name]
    raise LookupError(f"Megatron-Bridge has no recipe {name}; {nearest(name, known, 3)}")


if __name__ == "__main__":
    run_and_end(main)
