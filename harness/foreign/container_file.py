"""Megatron-Bridge's `ConfigContainer` file: what `run_script.py --dryrun` writes and what every run saves."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError
from harness.resolve.strict_yaml import Items, Node, PlainValue, Scalar, Table, parse_yaml, read_yaml

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
    """A `ConfigContainer` file; ``label`` opens messages about it."""

    label: str
    root: Table

    def find(self, *paths: str) -> Found | None:
        """Return the first of ``paths``, such as ``ddp.bucket_size``, that has a value, else the first null one, else None.

        ``model.X`` is also looked for as ``model.transformer.X``, where newer model classes keep megatron-core's fields.
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
        """Return all settings in plain Python."""
        return _plain(self.root, self.label)

    def place(self, path: str) -> str:
        """Return ``file:line: path`` for messages."""
        found = self.find(path)
        return f"{self.label}:{found.line}: {path}" if found else f"{self.label}: {path}"

    def target(self, section: str) -> str:
        """Return the class that Bridge instantiates for a section; empty if the file names none."""
        node = self.root.entries.get(section)
        found = node.entries.get("_target_") if isinstance(node, Table) else None
        return found.value if isinstance(found, Scalar) and isinstance(found.value, str) else ""

    def settings(self) -> Iterator[Found]:
        """Yield every setting of every section, those of `model.transformer` as those of `model`."""
        for section, node in self.root.entries.items():
            if isinstance(node, Table) and section not in _SETTINGS:
                yield from self._settings(section, node)

    def _settings(self, section: str, table: Table) -> Iterator[Found]:
        for key, node in table.entries.items():
            path = f"{section}.{key}"
            if path == _NESTED and isinstance(node, Table):
                yield from self._settings(section, node)
            elif not key.startswith("_"):
                yield Found(_plain(node, self.label), path, table.key_lines[key])

    def _at(self, path: str) -> Found | None:
        node: Node = self.root
        line = self.root.line
        for key in path.split("."):
            if not isinstance(node, Table) or key not in node.entries:
                return None
            line = node.key_lines[key]
            node = node.entries[key]
        return Found(_plain(node, self.label), path, line)


def flat(path: str) -> str:
    """Return a path without the nesting of newer model classes: `model.num_layers` of `model.transformer.num_layers`."""
    return path.replace(f"{_NESTED}.", "model.", 1)


def read_container(path: Path, label: str) -> Container:
    """Read the container in a file. Raises BadRequestError with ``file:line`` if it holds no container or no strict YAML."""
    return _container(read_yaml(path, label, by_pyyaml=True), label)


def parse_container(text: str, label: str) -> Container:
    """Read the container in ``text``, as :func:`read_container` does."""
    return _container(parse_yaml(text, label, by_pyyaml=True), label)


def _container(root: Node, label: str) -> Container:
    target = root.entries.get("_target_") if isinstance(root, Table) else None
    if not isinstance(root, Table) or not isinstance(target, Scalar) or target.value != _ROOT:
        raise BadRequestError(
            f"{label}: not a ConfigContainer of Megatron-Bridge: _target_ is not {_ROOT}",
            remedy="give the file that `run_script.py --dryrun` writes, or the run_config.yaml of a run",
        )
    return Container(label, root)


def _plain(node: Node, label: str) -> PlainValue:
    """Return the value; an enum becomes the name of its member, a class or function its dotted path."""
    match node:
        case Scalar(value=value):
            return value
        case Items(nodes=nodes):
            return tuple(_plain(n, label) for n in nodes)
        case Table(entries=entries) if "_call_" in entries or "_partial_" in entries:
            return _named(node, label)
        case Table(entries=entries):
            return {key: _plain(n, label) for key, n in entries.items() if key not in _SETTINGS}


def _named(node: Table, label: str) -> str:
    target, call, name = (node.entries.get(key) for key in ("_target_", "_call_", "_name_"))
    is_enum = isinstance(call, Scalar) and call.value is True and name is not None
    named = name if is_enum else target
    if not isinstance(named, Scalar) or not isinstance(named.value, str):
        key = "_name_" if is_enum else "_target_"
        raise BadRequestError(
            f"{label}:{node.line}: a value with _call_ or _partial_ needs {key} as text",
            remedy="write the file with Megatron-Bridge's to_yaml, not by hand",
        )
    return named.value if is_enum else _member(named.value, node.entries.get("_args_"))


def _member(target: str, numbers: Node | None) -> str:
    """Return the member that a number names in an enum of megatron-core; ``target`` where there is none."""
    members = _MEMBERS.get(target.rpartition(".")[2], ())
    number = numbers.nodes[0] if isinstance(numbers, Items) and numbers.nodes else None
    known = dict(enumerate(members, 1))
    value = number.value if isinstance(number, Scalar) else None
    return known.get(value, target) if isinstance(value, int) else target
