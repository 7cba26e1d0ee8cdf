"""Command-line options as the last layer of settings, `--set` and `--env` among them; an absent option adds nothing."""

import ast
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import fields

from harness.errors import BadRequestError, Problems, nearest
from harness.experiment.model import MOST
from harness.experiment.software import ALLOCATOR_NAMES
from harness.records.strict_yaml import parse_yaml
from harness.resolve.recipe import LEAVES, SECTION_MODELS, Layer, Request, Setting, Value, merge, settable_paths
from harness.resolve.recompute import policy_from_text, recompute_setting
from harness.units import GIB, shortened

LEAF_OF_OPTION = {
    "gpus_per_node": "gpus_per_node",
    "activation_offload_layers": "offload.cpu_offloading_num_layers",
    "cuda_graph_impl": "cuda_graph.impl",
} | {field.name: path for field in fields(Request) for path in LEAVES if path.rpartition(".")[1:] == (".", field.name)}
"""Options that set one leaf, by the name of the Request field, which is also the long option."""


def options_layer(request: Request, problems: Problems) -> Layer:
    """Return the settings of the options; append every fault to ``problems``.

    ``-tp N`` also sets sequence parallelism (on for N > 1) and ``--cuda_graph_impl none`` clears the scope, as in
    Megatron-Bridge; ``--set`` overrides such a consequence, but contradicting an option of the same name is an error.
    """
    direct = _direct(request, problems)
    policy = problems.tried(lambda: recompute_setting(request))
    direct = merge(
        direct, {"recompute": policy} if policy else {}, _collect(request.env, "--env", _env_value, problems)
    )
    assigned = set_settings(request.set_values, problems)
    for path in sorted(set(direct) & set(assigned)):
        if direct[path].value != assigned[path].value:
            problems.add(f"{direct[path].source} contradicts {assigned[path].source}", "give one of them")
    return merge(_consequences(direct, assigned), direct, assigned)


def env_of_options(assignments: Iterable[str]) -> dict[str, str]:
    """Return the variables of ``--env``. BadRequestError with all that are malformed or given twice."""
    problems = Problems()
    settings = _collect(assignments, "--env", _env_value, problems)
    problems.raise_if_any()
    return {path.removeprefix("env."): str(setting.value) for path, setting in settings.items()}


def _direct(request: Request, problems: Problems) -> Layer:
    settings: dict[str, Setting] = {}
    for option, path in LEAF_OF_OPTION.items():
        value: Value = getattr(request, option)
        if value is not None:
            cleared = option == "virtual_pipeline_model_parallel_size" and value == "none"
            settings[path] = Setting(None if cleared else value, f"--{option}")
    limit, scope = request.memory_limit, request.cuda_graph_scope
    if scope is not None:
        parts = tuple(part.strip() for part in scope.split(",") if part.strip())
        settings["cuda_graph.scope"] = Setting(parts, "--cuda_graph_scope")
        if parts and request.cuda_graph_impl == "none":
            problems.add(f"--cuda_graph_impl none contradicts --cuda_graph_scope {scope}", "give one of them")
    if limit is not None and 1 <= limit * GIB < math.inf:
        settings["measure.memory_limit_bytes"] = Setting(round(limit * GIB), "--memory_limit")
    elif limit is not None:
        problems.add(f"--memory_limit {limit:g} must be a finite number above 0", "GiB of each rank, e.g. 0.5")
    return settings


def _consequences(direct: Layer, assigned: Layer) -> Layer:
    settings: dict[str, Setting] = {}
    tensor = direct.get("parallelism.tensor_model_parallel_size")
    if tensor is not None and isinstance(tensor.value, int):
        settings["parallelism.sequence_parallel"] = Setting(tensor.value > 1, tensor.source)
    graph = direct.get("cuda_graph.impl")
    if graph is not None and graph.value == "none":
        settings["cuda_graph.scope"] = Setting((), graph.source)
    usual, other = (f"env.{name}" for name in ALLOCATOR_NAMES)
    if given := direct.get(other, assigned.get(other)):
        settings[usual] = Setting(None, given.source)
    return settings


def read_layer_freq(text: str) -> tuple[int, ...]:
    """Expand a pattern, as Megatron-LM writes it in Python, to one 0 or 1 per layer; BadRequestError for other text.

    >>> read_layer_freq("[0]*1+([0,1]*2)")
    (0, 0, 1, 0, 1)
    """
    try:
        return _layers_of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadRequestError(
            f"{shortened(repr(text))} is not a layer pattern such as [0]*3+[1]*58",
            remedy="write an integer, a list of 0 and 1, or [0]*3+[1]*58",
        ) from None


def _layers_of(node: ast.expr) -> tuple[int, ...]:
    found: tuple[object, ...]
    match node:
        case ast.List(elts=items):
            found = tuple(each.value if isinstance(each, ast.Constant) else None for each in items)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            found = _layers_of(left) + _layers_of(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))):
            layers = _layers_of(left)
            found = layers * min(times, MOST["layers"] // max(len(layers), 1) + 1)
        case _:
            found = ()
    known = tuple(each for each in found if type(each) is int and each in (0, 1))
    if not known or len(known) < len(found) or len(known) > MOST["layers"]:
        raise ValueError
    return known


def with_num_layers(pattern: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """Return the pattern for another depth: the leading dense layers stay, the rest are MoE."""
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    return tuple(0 if i < dense else 1 for i in range(num_layers))


_USER_BUFFERS = "kernels.tp_comm_overlap_cfg"
_WHOLE = {_USER_BUFFERS: "{qkv_dgrad: {method: bulk, num_sm: 4}}", "recompute": "full:block:4"}
"""Settings that are replaced whole, with an example of their value."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def set_settings(assignments: Iterable[str], problems: Problems) -> dict[str, Setting]:
    """Return the settings of all well-formed ``--set``; append every bad path, value and repetition to ``problems``."""
    return _collect(assignments, "--set", _set_value, problems)


def _collect(
    assignments: Iterable[str], option: str, read: Callable[[str, str, str], tuple[str, Value]], problems: Problems
) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        with problems.collecting():
            if not equals:
                raise BadRequestError(f"{option} {text}: no '='", remedy=f"write {option} NAME=VALUE")
            path, read_value = read(name.strip(), value, f"{option} {name.strip()}")
            old = settings.get(path)
            if old is not None and old.value != read_value:
                values = "" if path.startswith("env.") else f": {old.value!r}, {read_value!r}"  # may be secrets
                raise BadRequestError(f"{option} {path} is given twice{values}", remedy="keep one")
            settings[path] = Setting(read_value, f"{option} {path}" if option == "--set" else "--env")
    return settings


def _env_value(name: str, value: str, place: str) -> tuple[str, Value]:
    if not _ENV_NAME.fullmatch(name):
        raise BadRequestError(f"{place}: no name of an environment variable", remedy="letters, digits and _ only")
    return f"env.{name}", value


def _set_value(path: str, text: str, place: str) -> tuple[str, Value]:
    if path.startswith("env."):
        return _env_value(path.removeprefix("env."), text, place)
    if path == "recompute":
        return path, policy_from_text(text, place)
    if path in SECTION_MODELS or path == "env":
        raise BadRequestError(
            f"{place}: a section cannot be set whole", remedy=f"set a field of it, as in {path}.NAME=VALUE"
        )
    for whole, example in _WHOLE.items():
        if path.startswith(f"{whole}."):
            raise BadRequestError(f"{place}: {whole} is replaced whole", remedy=f"as in --set '{whole}={example}'")
    if path not in settable_paths():
        raise BadRequestError(f"{place}: no such setting", remedy=_nearest_path(path))
    if path == "model.moe.moe_layer_freq" and "*" in text:
        try:
            return path, read_layer_freq(text)
        except BadRequestError as error:
            raise BadRequestError(f"{place}: {error.message}", remedy=error.remedy) from error
    value = parse_yaml(text, place, with_lines=False).at(()) if text.strip() else {}
    if isinstance(value, dict) and not (value and path == _USER_BUFFERS):
        raise BadRequestError(
            f"{place}: a value is needed, is {text!r}", remedy="write a number, text, true, false, null or a list"
        )
    return path, value


def _nearest_path(path: str) -> str:
    section = path.rpartition(".")[0]
    if section in SECTION_MODELS:
        return nearest(path, [p for p in settable_paths() if p.rpartition(".")[0] == section])
    near = nearest(path, settable_paths())
    if near.startswith("did you mean"):
        return near
    return f"sections: {', '.join((*SECTION_MODELS, 'env', 'recompute'))}"
