"""Reads the traces that travel with mbr-perf: a machine without torch can plan with them.

There is one zip file per release of megatron-core. ``about.json`` says what made the traces. Every other member holds
all traces of one reduced request: all recompute settings, kinds of layers and ends of the model. Equal operations are
stored once.
"""

import ast
import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import harness
from harness.experiment.frozen import Frozen
from harness.experiment.software import Software
from harness.predict.trace_cases import CachedTrace
from harness.records.folders import checkout_dir
from harness.records.trace import ChunkTrace, OpCost, TraceCase

# The sources that decide a trace. Of the requests, the functions that the tracer calls: a case itself names all values.
_PACKAGE = Path(harness.__file__).parent
_TRACER = ("engine/trace.py", "engine/tracing", "engine/config.py", "engine/model.py", "engine/cpu_backend.py",
           "engine/adapters.py")  # fmt: skip
_REQUESTS = ("experiment/experiment.py", "experiment/model.py", "experiment/gpu.py", "experiment/recompute.py")
_STAND_IN, RECORDER = ("engine/stand_in",), ("engine/tracing/recording.py", "records/events.py")
_NOT_OF_CHUNKS = frozenset({"whole_step.py", "recording.py"})
# What megatron-core's layers, ends of the model and their communication consist of.
_LAYERS = ("*.py", "transformer/**/*.py", "models/gpt/**/*.py", "models/common/**/*.py", "tensor_parallel/**/*.py",
           "fusions/**/*.py", "extensions/**/*.py")  # fmt: skip
# What a trace depends on of a precision.
_OF_PRECISION = ("peak", "params_dtype", "transformer_config", "fp8_param_gather")


class About(Frozen):
    """What made the traces of a file: releases, and fingerprints of sources.

    ``tracer`` and ``stand_in``: of their code, without comments, docstrings and texts of errors. ``layers``: of the
    files of megatron-core's own layers. ``sources``: of the same code as bytes; where they agree, nothing is parsed.
    """

    megatron_core: str
    torch: str
    tracer: str
    stand_in: str
    layers: str
    sources: str = ""


def made_here() -> About:
    """The description of traces that this interpreter makes; PackageNotFoundError without torch and megatron-core."""
    version = metadata.version
    return About(
        megatron_core=version("megatron-core"),
        torch=version("torch").partition("+")[0],
        tracer=tracer_code(),
        stand_in=stand_in_code(),
        layers=layers_digest() or "",
        sources=sources_digest(),
    )


def shipped_file(megatron_core: str) -> Path:
    """Return the file of a release, in the checkout or in the installed package; it need not exist."""
    checkout = checkout_dir()
    folder = checkout / "results" / "traces" if checkout else _PACKAGE / "_data" / "traces"
    return folder / f"megatron-core-{megatron_core}.zip"


def shipped_releases() -> tuple[str, ...]:
    """Return the releases of megatron-core that have a file."""
    folder = shipped_file("").parent
    return tuple(sorted(file.stem.removeprefix("megatron-core-") for file in folder.glob("megatron-core-*.zip")))


def why_not(about: About, installed: Software) -> str:
    """Return why the traces differ from traces that this machine would make; empty if they do not.

    Without megatron-core of that release here, only the tracer can differ.
    """
    is_same = about.sources == sources_digest() or (about.tracer, about.stand_in) == (tracer_code(), stand_in_code())
    if not is_same:
        return "another version of the tracer made them"
    if installed.megatron_core != about.megatron_core:
        return ""
    if installed.torch and installed.torch.partition("+")[0] != about.torch:
        return f"torch {about.torch} made them, torch {installed.torch} is installed"
    if layers_digest() != about.layers:
        return f"the installed megatron-core {about.megatron_core} differs from the released one"
    return ""


@cache
def sources_digest() -> str:
    """Return a fingerprint of all these sources as they are."""
    digest = hashlib.sha256()
    for file in _files((*_TRACER, *_REQUESTS, *_STAND_IN, *RECORDER)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def tracer_code() -> str:
    """Return a fingerprint of the tracer's code, and of the functions of a request that it calls."""
    trees = [*_trees(_TRACER)]
    return _digest((*trees, *_called(trees, [*_trees(_REQUESTS)])))


@cache
def stand_in_code() -> str:
    """Return a fingerprint of the code that replaces transformer-engine and other compiled kernels."""
    return code_digest(_STAND_IN)


def code_digest(parts: Iterable[str]) -> str:
    """Return a fingerprint of sources of this package, files or folders, without comments and docstrings."""
    return _digest(_trees(parts))


@cache
def layers_digest() -> str | None:
    """Return a fingerprint of the installed megatron-core's layers; None without one."""
    found = find_spec("megatron")
    for folder in (found.submodule_search_locations or ()) if found else ():
        core = Path(folder) / "core"
        if not core.is_dir():
            continue
        digest = hashlib.sha256()
        for file in sorted({file for pattern in _LAYERS for file in core.glob(pattern)}):
            digest.update(str(file.relative_to(core)).encode())
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]
    return None


def _files(parts: Iterable[str]) -> Iterator[Path]:
    """Yield the files, and those in the folders that decide about chunks."""
    for root in (_PACKAGE / part for part in parts):
        inside = sorted(root.rglob("*.py")) if root.is_dir() else []
        yield from (file for file in inside if file.name not in _NOT_OF_CHUNKS) if inside else (root,)


def _trees(parts: Iterable[str]) -> Iterator[ast.AST]:
    return (ast.parse(file.read_bytes()) for file in _files(parts))


def _called(callers: Iterable[ast.AST], trees: Iterable[ast.AST]) -> list[ast.AST]:
    """Return the functions in ``trees`` that ``callers`` name, directly or through other such functions."""
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found: list[ast.AST] = []
    due = list(callers)
    while due:
        names = {name for tree in due for name in _names(tree)}
        due = [function for function in functions if function.name in names and function not in found]
        found += due
    return found


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            yield node.attr if isinstance(node, ast.Attribute) else node.id


def _digest(trees: Iterable[ast.AST]) -> str:
    digest = hashlib.sha256()
    for tree in trees:
        _add_code(tree, found := list[str]())
        digest.update("".join(found).encode())
    return digest.hexdigest()[:16]


def _add_code(node: ast.AST, found: list[str]) -> None:
    """Add the names and values of a syntax tree, equal in every release of Python, without docstrings and errors."""
    found.append(type(node).__name__)
    for name in node._fields:
        value = getattr(node, name, None)
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST):
                if not _is_text(child):
                    _add_code(child, found)
            elif child is not None and name not in ("kind", "type_comment"):
                found.append(f"{name}={child!r}")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


@dataclass(frozen=True)
class Address:
    """Where a trace is: ``member`` of the file, and ``name`` in it. ``values``: all that the member's traces share."""

    member: str
    name: str
    values: dict[str, object] = field(repr=False, compare=False)


def address_of(case: TraceCase, imbalance: float) -> Address:
    """Return the address of a case, equal for equal cases.

    A field that a later version adds changes no address while it has its default.
    """
    spec = case.spec
    dump = spec.model_dump(mode="json", exclude_defaults=True)
    recompute, offload = dump.pop("recompute", None), dump.pop("offload", None)
    _without_kind(dump["model"])
    dump["gpu"] = {"name": dump["gpu"], "capability": spec.gpu_type.capability}
    dump["compute_dtype"] = {name: value for name, value in asdict(spec.precision).items() if name in _OF_PRECISION}
    mtp = spec.model.mtp_num_layers
    name = [case.layer_kind, case.num_layers, case.pre, case.post, mtp, offload, recompute, imbalance]
    member = hashlib.sha256(json_text(dump).encode()).hexdigest()[:16]
    return Address(member, json_text(name), dump)


def json_text(value: object) -> str:
    """Return the one text of a value: equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def defaults_of(case: TraceCase) -> dict[str, object]:
    """Return all fields of the reduced request, defaults included, without those that differ inside a member."""
    dump = case.spec.model_dump(mode="json", exclude={"recompute", "offload", "measure", "gpu"})
    _without_kind(dump["model"])
    return dump


def _without_kind(model: dict[str, Any]) -> None:
    """Remove the settings that the kind of a layer decides."""
    for name in ("mtp_num_layers", "window_attn_skip_freq", "no_rope_freq"):
        model.pop(name, None)
    for section, name in (("moe", "moe_layer_freq"), ("linear_attention", "linear_attention_freq")):
        (model.get(section) or {}).pop(name, None)


def _agree(stored: object, now: object) -> bool:
    """Return whether every field that both know has the same value."""
    if isinstance(stored, dict) and isinstance(now, dict):
        return all(_agree(value, now[name]) for name, value in stored.items() if name in now)
    return stored == now


def read_member(path: Path, name: str) -> Any:
    """Return the content of a member of a file; None where the file has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read(f"{name}.json"))
    except KeyError:
        return None


@dataclass(frozen=True)
class ShippedTraces:
    """The traces of one file. Reads a member when one of its traces is asked for."""

    path: Path
    about: About
    _members: dict[str, dict[str, CachedTrace]] = field(default_factory=dict, repr=False, compare=False)

    def read(self, case: TraceCase, imbalance: float) -> CachedTrace | None:
        """Return the trace of ``case``.

        None if the file has none, or if a default of the request's fields has changed since.
        """
        address = address_of(case, imbalance)
        if address.member not in self._members:
            self._members[address.member] = self._read(address.member, case)
        return self._members[address.member].get(address.name)

    def _read(self, member: str, case: TraceCase) -> dict[str, CachedTrace]:
        content = read_member(self.path, member)
        return self._unpacked(content) if content and _agree(content["spec"], defaults_of(case)) else {}

    def _unpacked(self, content: dict[str, Any]) -> dict[str, CachedTrace]:
        ops = [OpCost.model_validate(row) for row in content["ops"]]
        found = {}
        for name, row in content["traces"].items():
            chunk = None
            if "refused" not in row:
                lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
                chunk = ChunkTrace.model_validate({**row, **lists, "ops": tuple(ops[i] for i in row["ops"])})
            made_with = {"megatron_core": self.about.megatron_core, "torch": self.about.torch}
            found[name] = CachedTrace(**made_with, chunk=chunk, refused=row.get("refused"))
        return found


def find_shipped(megatron_core: str, installed: Software) -> tuple[ShippedTraces | None, str]:
    """Return the traces of a release, or the reason why there are none for it here."""
    path = shipped_file(megatron_core)
    try:
        with zipfile.ZipFile(path) as archive:
            about = About.model_validate_json(archive.read("about.json"))
    except FileNotFoundError:
        return (
            None,
            f"mbr-perf brings traces for megatron-core {' and '.join(shipped_releases()) or '(none)'}, not for "
            f"{megatron_core}",
        )
    except (OSError, KeyError, zipfile.BadZipFile, ValidationError):
        return None, f"{path} cannot be read"
    reason = why_not(about, installed)
    if reason:
        return None, f"mbr-perf does not use its traces for megatron-core {megatron_core}: {reason}"
    return ShippedTraces(path, about), ""
