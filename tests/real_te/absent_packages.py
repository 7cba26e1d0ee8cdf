"""Packages that transformer-engine imports and that need a GPU or that no test needs: triton, onnx and onnxscript.

Importing them gives modules that have every attribute. Launching a triton kernel writes nothing.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from contextlib import contextmanager

_NAMES = ("onnxscript", "onnx", "triton", "einops")


@contextmanager
def replaced():
    """Replace the packages by doubles inside the block, and restore them afterwards."""
    finder, before = _Finder(), _imported()
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in _imported():
            del sys.modules[name]
        sys.modules.update(before)


def _imported():
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] in _NAMES}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path, target=None):
        if fullname.split(".")[0] in _NAMES:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Anything(spec.name)

    def exec_module(self, module):
        pass


class _Anything(types.ModuleType):
    """An object that has every attribute and item, and can be called."""

    __path__ = ()
    __file__ = "absent"

    def __getattr__(self, name):
        if name == "__version__":
            return "3.5.0"
        if name.startswith("__"):
            raise AttributeError(name)
        return _ANSWERS.get(name) or _Anything(name)

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else _Anything("called")

    def __getitem__(self, _item):
        return _Anything("item")

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases):
        return (object,)


class _Kernel:
    def __init__(self, *_function):
        pass

    def __getitem__(self, _grid):
        return lambda *_arguments, **_options: None


def _decorator(*args, **_options):
    is_function = len(args) == 1 and callable(args[0])
    return _Kernel() if is_function else lambda function: function if isinstance(function, _Kernel) else _Kernel()


_ANSWERS = {
    "jit": _decorator,
    "autotune": _decorator,
    "heuristics": _decorator,
    "next_power_of_2": lambda n: 1 << (int(n) - 1).bit_length(),
    "cdiv": lambda a, b: -(-a // b),
}
