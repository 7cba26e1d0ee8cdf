"""Empty modules for packages that Megatron-Bridge imports and that a machine without a GPU lacks.

Resolving a recipe reads configurations and computes nothing, so a name that can be imported, subclassed, called as a
decorator or subscripted is enough. Nothing here stands in for a value that the audit compares.
"""

import abc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence

PACKAGES = (
    "causal_conv1d", "comet_ml", "fast_hadamard_transform", "fla", "flash_attn", "flashinfer", "mamba_ssm",
    "megatron.energon", "mlflow", "modelopt", "nvidia_resiliency_ext", "nvtx", "onnxscript", "open_clip", "timm",
    "transformer_engine", "transformer_engine_torch",
)  # fmt: skip
ABSENT = ("nvidia_resiliency_ext.checkpointing",)  # whose version megatron-core checks where it can be imported
VERSIONS = {"transformer_engine": "2.14.0"}  # Bridge refuses some settings with a release before 2.12


class _AnyType(abc.ABCMeta):
    def __getattr__(cls, name: str) -> "Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __or__(cls, other: object) -> "_AnyType":
        return cls

    __ror__ = __or__


class Anything(metaclass=_AnyType):
    """An object that has every attribute, can be called with everything, and used as a decorator returns its function."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return a function that is decorated, else itself."""
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name: str) -> "Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, key: object) -> "Anything":
        return self

    def __class_getitem__(cls, key: object) -> type:
        return cls

    def __iter__(self) -> Iterator[object]:
        return iter(())


class _Names(types.ModuleType):
    """A module in which every public name is a class of its own."""

    def __getattr__(self, name: str) -> object:
        if name == "__version__":
            return VERSIONS.get(self.__name__.partition(".")[0], "0.0.0")
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Anything,), {})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if _within(name, ABSENT):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if _within(name, self.packages):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Names(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> tuple[str, ...]:
    """Provide the packages of :data:`PACKAGES` that are not installed, and return their names."""
    missing = tuple(name for name in PACKAGES if not _installed(name))
    sys.meta_path.append(_Finder(missing))
    return missing


def _within(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it lies in
        return False
