"""Loads transformer-engine's real Python over the double of its compiled extension."""

import functools
import os
import sys
import types
import warnings
from pathlib import Path

import torch

HERE = Path(__file__).parent


def prepare(folder, capability=(9, 0)):
    """Make ``import transformer_engine`` give the package below ``folder``; returns its version.

    Call before megatron.core is imported. The process cannot go back; `stand_for` changes the GPU.
    """
    os.environ |= {"NVTE_PROJECT_BUILDING": "1", "NVTE_FRAMEWORK": "pytorch"}  # load no shared library
    # Read on import. Ranks that offload modules have it; for all others it changes nothing.
    os.environ["NVTE_CPU_OFFLOAD_V1"] = "1"
    version = Path(folder).name
    sys.path[:0] = [str(HERE), str(folder)]
    import absent_packages
    import cuda_answers
    from stood_for import STOOD_FOR

    STOOD_FOR.capability = capability
    STOOD_FOR.release = tuple(map(int, version.split(".")[:2]))
    cuda_answers.install(STOOD_FOR)
    warnings.filterwarnings("ignore", module="transformer_engine")
    with absent_packages.replaced():
        package = _import(folder)
    _mend(STOOD_FOR)
    return package.__version__


def stand_for(capability):
    """Stand for a GPU of ``capability`` from now on, and forget what ran before: groups, scales, cached answers."""
    from stood_for import STOOD_FOR
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager

    STOOD_FOR.capability = capability
    FP8GlobalStateManager.reset()
    for module in _modules():
        for value in vars(module).values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def _import(folder):
    """Import the package; its extension is already in place."""
    package = types.ModuleType("transformer_engine")
    package.__path__ = [f"{folder}/transformer_engine"]
    sys.modules["transformer_engine"] = package
    from transformer_engine import common

    common.load_framework_extension = lambda _framework: None
    del sys.modules["transformer_engine"]
    import transformer_engine

    transformer_engine.common = common
    import transformer_engine.pytorch

    return transformer_engine


def _mend(stood_for):
    """Replace functions that call CUDA directly, and provide what the tracer needs of transformer-engine."""
    from transformer_engine.pytorch import permutation
    from transformer_engine.pytorch.module import base

    def canonicalize_device(device=None):
        return stood_for.device if device is None or str(device).startswith("cuda") else torch.device(device)

    _replace("canonicalize_device", canonicalize_device)
    _replace("_get_cuda_rng_state", lambda *_arguments, **_options: torch.zeros(16, dtype=torch.uint8, device="cpu"))
    _replace("_set_cuda_rng_state", lambda *_arguments, **_options: None)
    _replace("get_sign_from_vector", lambda _vector: 0)  # reads values
    for name in ("moe_sort_chunks_by_index", "moe_sort_chunks_by_index_with_probs"):
        _replace(name, _with_counts_as_tensors(getattr(permutation, name)))
    base.forget_dummy_wgrads = base._dummy_wgrads.clear
    formats = types.ModuleType("transformer_engine.pytorch.formats")
    formats.MACHINE = stood_for
    sys.modules[formats.__name__] = formats


def _with_counts_as_tensors(sort):
    """The tracer knows token counts on the host; this kernel takes them on the GPU."""

    @functools.wraps(sort)
    def call(*arguments, **options):
        return sort(*(_as_tensor(a) for a in arguments), **{name: _as_tensor(a) for name, a in options.items()})

    return call


def _as_tensor(argument):
    return torch.empty(len(argument), dtype=torch.int32, device="meta") if isinstance(argument, list) else argument


def _modules():
    return [module for name, module in sys.modules.items() if name.startswith("transformer_engine.")]


def _replace(name, value):
    for module in _modules():
        if name in vars(module):
            setattr(module, name, value)
