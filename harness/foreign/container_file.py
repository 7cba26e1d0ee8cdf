"""Megatron-Bridge's `ConfigContainer` file: what `run_script.py --dryrun` writes and what every run saves."""

from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import BadRequestError
from harness.foreign.words import Given, Words, text_of
from harness.records.reading import Document, PlainValue
from harness.records.refusing import Keys
from harness.records.strict_yaml import read_yaml

_ROOT = "megatron.bridge.training.config.ConfigContainer"
_SETTINGS = ("_target_", "_builder_")  # name the classes that Bridge instantiates; they are not settings
_NESTED = "model.transformer"
_GRAPHED = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
_MEMBERS = {  # in the order of their numbers from 1 on: version 0.3 writes only the number
    "AttnBackend": ("flash", "fused", "unfused", "local", "auto"),
    "CudaGraphScope": ("full_iteration", *_GRAPHED),
    "CudaGraphModule": _GRAPHED,
    "LayerType": ("embedding", "loss", "encoder", "decoder", "mtp"),
}


@dataclass
class Container(Words):
    """A `ConfigContainer` file. Settings of `model.transformer`, of newer model classes, count as those of `model`."""

    file: Document = field(kw_only=True)

    def __post_init__(self) -> None:
        root = self.file.at(())
        for section in root if isinstance(root, dict) else ():
            if section not in _SETTINGS:
                self._take(section, (section,))

    def _take(self, path: str, keys: Keys) -> None:
        """Take a section or a setting with what it holds; refuse a setting that is written twice."""
        value, line = self._plain(keys), self.file.line(keys)
        known = self.given if len(keys) == (3 if keys[:2] == ("model", "transformer") else 2) else self.around
        if path == _NESTED and isinstance(value, dict):
            path, known = "model", {}
        elif len(keys) > 1 and path in known and known[path].value != value:
            other = known[path].source.removeprefix(f"{self.label}:").partition(":")[0]
            message = f"{path} is {text_of(value)}, but line {other} sets {text_of(known[path].value)}"
            self.problems.add(f"{self.label}:{line}: {message}", "keep one of them")
        if path not in known or known[path].value is None:
            known[path] = Given(value, f"{self.label}:{line}: {path}")
        table = self.file.at(keys)
        for key in table if isinstance(value, dict) and isinstance(table, dict) else ():
            if not key.startswith("_"):
                self._take(f"{path}.{key}", (*keys, key))

    @property
    def plain(self) -> PlainValue:
        return self._plain(())

    def target(self, section: str) -> str:
        """Return the class that Bridge instantiates for a section; empty if the file names none."""
        found = self.file.at((section, "_target_"))
        return found if isinstance(found, str) else ""

    def _plain(self, keys: Keys) -> PlainValue:
        """Return the value; an enum becomes the name of its member, a class or function its dotted path."""
        value = self.file.at(keys)
        if isinstance(value, tuple):
            return tuple(self._plain((*keys, place)) for place in range(len(value)))
        if not isinstance(value, dict):
            return value
        if "_call_" in value or "_partial_" in value:
            return self._named(value, keys)
        return {key: self._plain((*keys, key)) for key in value if key not in _SETTINGS}

    def _named(self, value: dict[str, PlainValue], keys: Keys) -> str:
        is_enum = value.get("_call_") is True and "_name_" in value
        key = "_name_" if is_enum else "_target_"
        named = value.get(key)
        if not isinstance(named, str):
            raise BadRequestError(
                f"{self.label}:{self.file.line(keys)}: a value with _call_ or _partial_ needs {key} as text",
                remedy="write the file with Megatron-Bridge's to_yaml, not by hand",
            )
        return named if is_enum else _member(named, value.get("_args_"))


def flat(path: str) -> str:
    """Return a path without the nesting of newer model classes: `model.X` of `model.transformer.X`."""
    return path.replace(f"{_NESTED}.", "model.", 1)


def read_container(path: Path, label: str) -> Container:
    """Read the container in a file. BadRequestError with ``file:line`` for other content."""
    file = read_yaml(path, label, by_pyyaml=True)
    if file.at(("_target_",)) != _ROOT:
        raise BadRequestError(
            f"{file.label}: not a ConfigContainer of Megatron-Bridge: _target_ is not {_ROOT}",
            remedy="give the file that `run_script.py --dryrun` writes, or the run_config.yaml of a run",
        )
    return Container(file.label, file=file)


def _member(target: str, numbers: PlainValue) -> str:
    """Return the member that a number names in an enum of megatron-core; ``target`` where there is none."""
    known = dict(enumerate(_MEMBERS.get(target.rpartition(".")[2], ()), 1))
    number = numbers[0] if isinstance(numbers, tuple) and numbers else None
    return known.get(number, target) if isinstance(number, int) else target
