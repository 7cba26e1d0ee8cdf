"""Megatron-Bridge's `ConfigContainer` file: what `run_script.py --dryrun` writes and what every run saves."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError
from harness.records.reading import Document, Keys, PlainValue
from harness.records.strict_yaml import parse_yaml, read_yaml

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


@dataclass(frozen=True)
class Found:
    """One setting of the file: its value in plain Python, its path and its line."""

    value: PlainValue
    path: str
    line: int


@dataclass(frozen=True)
class Container:
    """A `ConfigContainer` file."""

    file: Document

    @property
    def label(self) -> str:
        return self.file.label

    def find(self, *paths: str) -> Found | None:
        """Return the first of ``paths`` (``ddp.bucket_size``) that has a value, else the first null one, else None.

        ``model.X`` is also looked for as ``model.transformer.X``, where newer model classes keep megatron-core's
        fields.
        """
        null: Found | None = None
        for path in paths:
            section, _, rest = path.partition(".")
            for each in (path, f"{_NESTED}.{rest}") if section == "model" else (path,):
                found = self._at(each)
                if found is not None and found.value is not None:
                    return found
                null = null or found
        return null

    def value(self, *paths: str) -> PlainValue:
        """Return the value that :meth:`find` finds; None if the file has no value."""
        found = self.find(*paths)
        return None if found is None else found.value

    @property
    def plain(self) -> PlainValue:
        return self._plain(())

    def place(self, path: str) -> str:
        """Return ``file:line: path`` for messages."""
        found = self.find(path)
        return f"{self.label}:{found.line}: {path}" if found else f"{self.label}: {path}"

    def problem(self, path: str, message: str, remedy: str) -> BadRequestError:
        """Return a problem at a path."""
        return BadRequestError(f"{self.place(path)}: {message}", remedy=remedy)

    def target(self, section: str) -> str:
        """Return the class that Bridge instantiates for a section; empty if the file names none."""
        found = self.file.at((section, "_target_"))
        return found if isinstance(found, str) else ""

    def settings(self) -> Iterator[Found]:
        """Yield every setting of every section, those of `model.transformer` as those of `model`."""
        root = self.file.at(())
        for section in root if isinstance(root, dict) else ():
            if section not in _SETTINGS:
                yield from self._settings(section, (section,))

    def _settings(self, section: str, keys: Keys) -> Iterator[Found]:
        table = self.file.at(keys)
        for key in table if isinstance(table, dict) else ():
            path, inner = f"{section}.{key}", (*keys, key)
            if path == _NESTED and isinstance(self.file.at(inner), dict):
                yield from self._settings(section, inner)
            elif not key.startswith("_"):
                yield Found(self._plain(inner), path, self.file.line(inner))

    def _at(self, path: str) -> Found | None:
        *way, key = path.split(".")
        holder = self.file.at(tuple(way))
        if not isinstance(holder, dict) or key not in holder:
            return None
        return Found(self._plain((*way, key)), path, self.file.line((*way, key)))

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
    return _container(read_yaml(path, label, by_pyyaml=True))


def parse_container(text: str, label: str) -> Container:
    """Read the container in ``text``, as :func:`read_container` does."""
    return _container(parse_yaml(text, label, by_pyyaml=True))


def _container(file: Document) -> Container:
    if file.at(("_target_",)) != _ROOT:
        raise BadRequestError(
            f"{file.label}: not a ConfigContainer of Megatron-Bridge: _target_ is not {_ROOT}",
            remedy="give the file that `run_script.py --dryrun` writes, or the run_config.yaml of a run",
        )
    return Container(file)


def _member(target: str, numbers: PlainValue) -> str:
    """Return the member that a number names in an enum of megatron-core; ``target`` where there is none."""
    known = dict(enumerate(_MEMBERS.get(target.rpartition(".")[2], ()), 1))
    number = numbers[0] if isinstance(numbers, tuple) and numbers else None
    return known.get(number, target) if isinstance(number, int) else target
