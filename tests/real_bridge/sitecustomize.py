"""Lets Megatron-Bridge be imported, and train, on a processor: on the PYTHONPATH of ranks, before any of their imports.

Packages that Bridge imports at module level and that need CUDA become empty stubs. After Bridge's start-up module is
imported, torch's questions to CUDA get answers for a processor; the rest is mbr-perf's own `cpu_backend`.
"""

import abc
import collections
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
import types

STUBS = (
    "modelopt", "nvidia_resiliency_ext", "fla", "mamba_ssm", "causal_conv1d", "fast_hadamard_transform", "qwen_vl_utils",
    "mlflow", "timm", "open_clip", "diffusers", "webdataset",
)  # fmt: skip
ABSENT = ("nvidia_resiliency_ext.checkpointing",)  # megatron-core asks for a version that a stub has not
STARTS_UP = "megatron.bridge.training.initialize"


class _Kind(abc.ABCMeta):  # Bridge names it beside ABC
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Anything(metaclass=_Kind):
    """A value of a stub: a class, a decorator, a context, whatever Bridge does with it at module level."""

    def __init__(self, *_args, **_kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __class_getitem__(cls, _item):
        return cls


def _nothing(*_args, **_kwargs):
    """A function of a stub, which has nothing to give: modelopt adjusts no pipeline."""


class Stub(types.ModuleType):
    def __getattr__(self, name):
        if name == "__version__":
            return "0.0.0"
        if name.startswith("__"):
            raise AttributeError(name)
        value = _nothing if name.startswith("get_") else type(name, (Anything,), {})
        setattr(self, name, value)
        return value


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nobody else finds."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith(ABSENT):
            raise ModuleNotFoundError(name)
        is_stub = name.split(".")[0] in STUBS or name.startswith("megatron.energon")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_stub else None

    def create_module(self, spec):
        module = Stub(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


class AfterStartUp(importlib.abc.MetaPathFinder):
    """Runs :func:`on_a_processor` once Bridge's start-up module is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != STARTS_UP:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            on_a_processor(module)

        spec.loader.exec_module = exec_module
        return spec


class Event:
    def __init__(self, *_args, **_kwargs):
        pass

    def record(self, *_args):
        self.time_s = time.perf_counter()

    def elapsed_time(self, other):
        return (other.time_s - self.time_s) * 1e3

    def query(self):
        return True

    synchronize = wait = lambda self, *_args: None


def on_a_processor(initialize):
    """Answer what Bridge asks CUDA, and leave out what it compiles."""
    import torch

    properties = types.SimpleNamespace(major=9, minor=0, name="cpu", total_memory=1 << 34, multi_processor_count=1)
    answers = {
        "is_available": True, "set_device": None, "device_count": 1, "get_device_capability": (9, 0),
        "get_device_properties": properties, "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0,
        "max_memory_reserved": 0, "reset_peak_memory_stats": None, "empty_cache": None,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_args, _answer=answer, **_kwargs: _answer)
    torch.cuda.memory_stats = lambda *_args, **_kwargs: collections.defaultdict(int)
    torch.cuda.Event = Event
    torch.optim.Optimizer._accelerator_graph_capture_health_check = lambda _optimizer: None
    torch.Tensor.pin_memory = lambda self, *_args, **_kwargs: self
    for name in ("rand", "randn", "empty", "full", "arange", "empty_like", "randint", "zeros_like", "ones_like"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.Tensor.to = _to_cpu(torch.Tensor.to)
    initialize.compile_helpers = lambda: None  # `make` of a C++ helper; Bridge would call sys.exit(1) without it
    initialize._warmup_jit_function = lambda *_args, **_kwargs: None


def _is_cuda(value):
    return str(value).startswith("cuda") and type(value).__name__ in ("str", "device")


def _on_cpu(factory):
    def call(*args, **kwargs):
        return factory(*args, **kwargs | ({"device": "cpu"} if _is_cuda(kwargs.get("device")) else {}))

    return call


def _to_cpu(to):
    def call(self, *args, **kwargs):
        kwargs |= {"device": "cpu"} if _is_cuda(kwargs.get("device")) else {}
        return to(self, *("cpu" if _is_cuda(value) else value for value in args), **kwargs)

    return call


if os.environ.get("BRIDGE_ON_A_PROCESSOR"):
    sys.modules["transformer_engine"] = None
    sys.meta_path.insert(0, AfterStartUp())
    sys.meta_path.append(Stubs())
