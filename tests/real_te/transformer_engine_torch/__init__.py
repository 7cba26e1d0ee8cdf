"""A double of transformer-engine's compiled extension: every kernel allocates what the real one does, and computes nothing.

It stands below transformer-engine's own Python, which is real. A kernel that is missing here raises NotImplementedError
with its name, so a release that adds one fails by name.
"""

from transformer_engine_torch import (
    activations,
    attention,
    enumerations,
    gemm,
    libraries,
    norms,
    padding,
    quantizing,
    softmax,
    user_buffers,
)

_MODULES = (attention, enumerations, gemm, libraries, norms, padding, quantizing, softmax, user_buffers)


def _public(module):
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and value.__module__ == module.__name__
    }


_KERNELS = {name: value for module in _MODULES for name, value in _public(module).items()} | activations.ACTIVATIONS
globals().update(_KERNELS)
__all__ = list(_KERNELS)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_arguments, **_options):
        raise NotImplementedError(f"transformer_engine_torch.{name}: this kernel has no double in tests/real_te")

    missing.__name__ = name
    return missing
