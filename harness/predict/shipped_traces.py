"""Reads the traces and the requests for memory that travel with mbr-perf: a machine without torch plans with them.

There are two zip files per release of megatron-core. ``about.json`` says what made them. Every other member holds all
cases of one reduced request. Equal operations, and equal parts of requests, are stored once.
"""

import ast
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

import harness
from harness.experiment.frozen import Frozen
from harness.experiment.software import Software
from harness.predict.trace_cases import CachedTrace
from harness.records.events import ChunkEvents, Part
from harness.records.folders import checkout_dir
from harness.records.trace import ChunkTrace, OpCost, TraceCase

# The sources that decide a trace. Of the requests, the functions that the tracer calls: a case itself names all values.
_PACKAGE = Path(harness.__file__).parent
_TRACER = ("engine/trace.py", "engine/tracing", "engine/config.py", "engine/model.py", "engine/cpu_backend.py",
           "engine/adapters.py")  # fmt: skip
_REQUESTS = ("experiment/experiment.py", "experiment/model.py", "experiment/gpu.py", "experiment/recompute.py")
_STAND_IN, _RECORDER = ("engine/stand_in",), ("engine/tracing/recording.py", "records/events.py")
_NOT_OF_CHUNKS = frozenset({"whole_step.py", "recording.py"})
# What megatron-core's layers, ends of the model and their communication consist of.
_LAYERS = ("*.py", "transformer/**/*.py", "models/gpt/**/*.py", "models/common/**/*.py", "tensor_parallel/**/*.py",
           "fusions/**/*.py", "extensions/**/*.py")  # fmt: skip
# What a trace depends on of a precision.
_OF_PRECISION = ("peak", "params_dtype", "transformer_config", "fp8_param_gather")


class About(Frozen):
    """What made the traces of a file: releases, and fingerprints of sources.

    ``tracer`` (for requests ``tracer-recorder``) and ``stand_in``: of their code, without comments, docstrings and
    texts of errors. ``layers``: of the files of megatron-core's own layers. ``sources``: of the same code as bytes;
    where they agree, nothing is parsed.
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


def events_made_here() -> About:
    """As :func:`made_here`, of requests."""
    about = made_here()
    return about.model_copy(update={"tracer": f"{about.tracer}-{code_digest(_RECORDER)}"})


def shipped_file(megatron_core: str) -> Path:
    """Return the file of a release, in the checkout or in the installed package; it need not exist."""
    checkout = checkout_dir()
    folder = checkout / "results" / "traces" if checkout else _PACKAGE / "_data" / "traces"
    return folder / f"megatron-core-{megatron_core}.zip"


def events_file(megatron_core: str) -> Path:
    """Return the file of requests of a release; it need not exist."""
    traces = shipped_file(megatron_core)
    return traces.with_name(f"requests-{traces.name}")


def shipped_releases() -> tuple[str, ...]:
    """Return the releases of megatron-core that have a file."""
    folder = shipped_file("").parent
    return tuple(sorted(file.stem.removeprefix("megatron-core-") for file in folder.glob("megatron-core-*.zip")))


def why_not(about: About, installed: Software) -> str:
    """Return why the traces differ from those that this machine would make; empty if they do not."""
    if about.sources != sources_digest() and (about.tracer, about.stand_in) not in (
        (tracer_code(), stand_in_code()),
        (f"{tracer_code()}-{code_digest(_RECORDER)}", stand_in_code()),
    ):
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
    for file in _files((*_TRACER, *_REQUESTS, *_STAND_IN, *_RECORDER)):
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
    """Return the address of a case; a field that a later version adds changes none while it has its default."""
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


_Held = TypeVar("_Held")


@dataclass(frozen=True)
class Shipped(Generic[_Held]):
    """What one file holds of each case, by ``unpacked``. Reads a member when one of its cases is asked for."""

    path: Path
    unpacked: Callable[[dict[str, Any]], dict[str, _Held]]
    about: About | None = None
    _members: dict[str, dict[str, _Held]] = field(default_factory=dict, repr=False, compare=False)

    def read(self, case: TraceCase, imbalance: float = 1.0) -> _Held | None:
        """Return what the file has of ``case``; None if a default of the request's fields has changed since."""
        address = address_of(case, imbalance)
        if address.member not in self._members:
            self._members[address.member] = self._read(address.member, case)
        return self._members[address.member].get(address.name)

    def _read(self, member: str, case: TraceCase) -> dict[str, _Held]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                content = json.loads(archive.read(f"{member}.json"))
        except KeyError:
            return {}
        return self.unpacked(content) if _agree(content.get("spec", {}), defaults_of(case)) else {}


def shipped_traces(path: Path, about: About) -> Shipped[CachedTrace]:
    """Return the traces of a file."""
    made_with = {"megatron_core": about.megatron_core, "torch": about.torch}

    def unpacked(content: dict[str, Any]) -> dict[str, CachedTrace]:
        ops = [OpCost.model_validate(row) for row in content["ops"]]
        found = {}
        for name, row in content["traces"].items():
            chunk = None
            if "refused" not in row:
                lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
                chunk = ChunkTrace.model_validate({**row, **lists, "ops": tuple(ops[i] for i in row["ops"])})
            found[name] = CachedTrace(**made_with, chunk=chunk, refused=row.get("refused"))
        return found

    return Shipped(path, unpacked, about)


def shipped_events(path: Path) -> Shipped[ChunkEvents]:
    """Return the requests of a file."""

    def unpacked(content: dict[str, Any]) -> dict[str, ChunkEvents]:
        parts = [Part(**dict(zip(Part.model_fields, map(tuple, row), strict=True))) for row in content["parts"]]
        return {
            name: ChunkEvents(before=parts[row[0]], layer=parts[row[1]], behind=parts[row[2]], shared=tuple(row[3]))
            for name, row in content["chunks"].items()
        }

    return Shipped(path, unpacked)


def find_shipped(megatron_core: str, installed: Software) -> tuple[Shipped[CachedTrace] | None, str]:
    """Return the traces of a release, or the reason why there are none for it here."""
    path = shipped_file(megatron_core)
    if not path.exists():
        have = " and ".join(shipped_releases()) or "(none)"
        return None, f"mbr-perf brings traces for megatron-core {have}, not for {megatron_core}"
    if reason := why_not(about := _about(path), installed):
        return None, f"mbr-perf does not use its traces for megatron-core {megatron_core}: {reason}"
    return shipped_traces(path, about), ""


def find_events(megatron_core: str, installed: Software) -> Shipped[ChunkEvents] | None:
    """Return the requests of a release; None where there are none that hold here."""
    path = events_file(megatron_core)
    return shipped_events(path) if path.exists() and not why_not(_about(path), installed) else None


def _about(path: Path) -> About:
    with zipfile.ZipFile(path) as archive:
        return About.model_validate_json(archive.read("about.json"))
