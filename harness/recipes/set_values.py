"""Values given by `--set`, layer patterns among them."""

import difflib
import re
from collections.abc import Callable, Iterable

from harness.errors import BadRequestError
from harness.recipes.problems import Problems, nearest
from harness.recipes.recompute_section import policy_from_text
from harness.recipes.settings import SECTION_MODELS, Setting, Value, settable_paths
from harness.recipes.strict_yaml import Table, parse_yaml, plain

_TERM = re.compile(r"\[([01])\]\*([1-9][0-9]{0,3})")


def read_layer_freq(text: str) -> tuple[int, ...]:
    """One 0 or 1 per layer.

    >>> read_layer_freq("[0]*1+[1]*3")
    (0, 1, 1, 1)
    """
    pattern: tuple[int, ...] = ()
    for term in text.replace(" ", "").strip("()").split("+"):
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"{text!r} is not a layer pattern such as [0]*3+[1]*58")
        pattern += (int(match[1]),) * int(match[2])
    return pattern


def with_num_layers(pattern: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """The pattern for another depth: the leading dense layers stay, the rest are MoE.

    >>> with_num_layers((0, 0, 0, 1, 1, 1, 1), 5)
    (0, 0, 0, 1, 1)
    """
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    return tuple(0 if i < dense else 1 for i in range(num_layers))


_USER_BUFFERS = "kernels.tp_comm_overlap_cfg"
_WHOLE = {_USER_BUFFERS: "{qkv_dgrad: {method: bulk, num_sm: 4}}", "recompute": "full:block:4"}
"""Settings that are replaced whole, with an example of their value."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def set_settings(assignments: Iterable[str], problems: Problems) -> dict[str, Setting]:
    """Settings of all well-formed ``--set``; every bad path, value and repetition goes to ``problems``."""
    return _collect(assignments, "--set", _set_value, problems)


def env_settings(assignments: Iterable[str], problems: Problems) -> dict[str, Setting]:
    """Settings of all well-formed ``-E KEY=VALUE``; the first ``=`` splits, the value is taken as it is."""
    return _collect(assignments, "--env", _env_value, problems)


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
        return path, _layer_freq(text, place)
    node = parse_yaml(text, place, with_lines=False) if text.strip() else None
    if node is None or (isinstance(node, Table) and path != _USER_BUFFERS):
        raise BadRequestError(
            f"{place}: a value is needed, is {text!r}", remedy="write a number, text, true, false, null or a list"
        )
    return path, plain(node)


def _nearest_path(path: str) -> str:
    section = path.rpartition(".")[0]
    if section in SECTION_MODELS:
        return nearest(path, [p for p in settable_paths() if p.rpartition(".")[0] == section])
    close = difflib.get_close_matches(path, settable_paths(), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"sections: {', '.join((*SECTION_MODELS, 'env', 'recompute'))}"


def _layer_freq(text: str, place: str) -> tuple[int, ...]:
    try:
        return read_layer_freq(text)
    except ValueError as error:
        raise BadRequestError(f"{place}: {error}", remedy="as in [0]*3+[1]*58") from error
