"""Writes what Megatron-Bridge's `run_script.py --dryrun` writes, for many recipe functions in one process.

Runs in the audit's own environment with Bridge on the path, never in mbr-perf's. Input: JSON of `ask.requests`.
Output: a file for each configuration, and `refused.json` with what Bridge's final checks say of those that they refuse.
"""

import importlib
import json
import logging
import os
import sys
import time
import types
import typing
import warnings
from pathlib import Path
from typing import Any

import name_only
import typing_extensions

CAPABILITY = {"h100": (9, 0)}  # all others of the recipes are Blackwell


def main(requests: Path, out: Path) -> None:
    """Finalise every requested function; a function that Bridge refuses is reported and does not end the others."""
    _prepare_imports()
    importlib.import_module("megatron.bridge.perf_recipes")  # a package that is missing ends the audit here
    refused: dict[str, str] = {}
    (out / "library").mkdir(parents=True, exist_ok=True)
    for request in json.loads(requests.read_text()):
        try:
            _finalise(request, out / request["file"])
        except Exception as error:  # noqa: BLE001 (Bridge's own final checks raise several kinds)
            refused[request["file"]] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    (out / "refused.json").write_text(json.dumps(refused, indent=1, sort_keys=True) + "\n")


def _finalise(request: dict[str, Any], path: Path) -> None:
    _pretend_device(request["gpu"])
    function = getattr(importlib.import_module(request["module"]), request["function"])
    config = function()
    if request["precision_aware_adam"] and config.optimizer.optimizer == "adam":
        config.optimizer.use_precision_aware_optimizer = True  # as run_script.py does for -c bf16
    if config.peft is not None:
        config.checkpoint.pretrained_checkpoint = str(path.parent)  # a user must give this path, and it must exist
    try:
        _run_time_changes(config, request["num_gpus"])
    finally:  # write a refused configuration as far as Bridge completed it
        _write(config, path)


def _run_time_changes(config: Any, num_gpus: int) -> None:
    from megatron.bridge.training.config import runtime_config_update  # after the names are in place

    before = dict(os.environ)
    os.environ.update(WORLD_SIZE=str(num_gpus), RANK="0", LOCAL_RANK="0")
    try:
        runtime_config_update(config)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _write(config: Any, path: Path) -> None:
    layout = config.model.pipeline_model_parallel_layout
    if hasattr(layout, "input_data"):  # to_yaml would write the class without the layout
        config.model.pipeline_model_parallel_layout = layout.input_data
    config.to_yaml(str(path))


def _prepare_imports() -> None:
    if not hasattr(typing, "override"):  # Bridge asks for Python 3.12
        typing.override = typing_extensions.override  # type: ignore[attr-defined,unused-ignore]
    name_only.install()
    _provide_fused_adam()
    time.sleep = lambda seconds: None  # a model that is not in the offline cache is asked for four times, with pauses
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


def _provide_fused_adam() -> None:
    """Provide the signature of transformer-engine's optimizer, which megatron-core inspects for precision-aware states."""
    import torch

    class FusedAdam(torch.optim.AdamW):  # type: ignore[misc]
        def __init__(  # noqa: PLR0913 (the names that megatron-core looks for)
            self,
            params: Any,
            *,
            master_weights: bool = False,
            master_weight_dtype: Any = None,
            exp_avg_dtype: Any = None,
            exp_avg_sq_dtype: Any = None,
            use_decoupled_grad: bool = False,
            store_param_remainders: bool = False,
            capturable: bool = False,
        ) -> None: ...

    optimizers = types.ModuleType("transformer_engine.pytorch.optimizers")
    optimizers.FusedAdam = FusedAdam  # type: ignore[attr-defined]
    sys.modules[optimizers.__name__] = optimizers
    setattr(importlib.import_module("transformer_engine.pytorch"), "optimizers", optimizers)  # noqa: B010 (a made module)


def _pretend_device(gpu: str) -> None:
    """Let torch.cuda answer for a GPU type: Bridge's checks read only capability and name."""
    import torch

    major, minor = CAPABILITY.get(gpu, (10, 0))
    properties: Any = types.SimpleNamespace(
        major=major, minor=minor, name=f"NVIDIA {gpu.upper()}", total_memory=80 << 30, multi_processor_count=132
    )
    torch.cuda.get_device_properties = lambda *_, **__: properties
    torch.cuda.get_device_capability = lambda *_, **__: (major, minor)
    torch.cuda.get_device_name = lambda *_, **__: properties.name
    torch.cuda.device_count = lambda: 8
    torch.cuda.current_device = lambda: 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
