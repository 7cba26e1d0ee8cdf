"""Replaces options of Megatron-Bridge's `scripts/performance` by mbr-perf's own, or refuses them with a remedy."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from harness.errors import BadRequestError, Problems
from harness.records.strict_yaml import table_in
from harness.resolve.writing import scalar

Words = tuple[str, ...]
_SLURM = ("qos", "reservation", "constraint", "segment")
_PARAMS = "--additional_slurm_params"
_TABLE = table_in(Path(__file__).with_suffix(".yaml"))
TAKEN: Mapping[str, str | Mapping[str, str]] = _TABLE["taken"] | {
    _PARAMS: " ".join(f"--{name} {{}}" for name in _SLURM)
}
"""By long name, our options for an option of Megatron-Bridge, or by its value."""
_TRUTH = dict.fromkeys(("1", "t", "yes", "y"), "true") | dict.fromkeys(("0", "f", "no", "n"), "false")


@dataclass(frozen=True)
class Spelling:
    """How Megatron-Bridge spells an option, and how many values follow: 0, 1, "?" (none or one) or "*" (any number)."""

    name: str
    alias: str | None
    values: int | str


@cache
def spellings() -> Mapping[str, Spelling]:
    """Return every option of Megatron-Bridge by name and by alias."""
    found: dict[str, Spelling] = {}
    for row in json.loads(Path(__file__).with_name("bridge_options.json").read_text())["options"]:
        name, *more = row.split()  # NAME ALIAS VALUES, the last if it is not 1
        alias = next((word for word in more if word.startswith("-")), None)
        values = next((word for word in more if not word.startswith("-")), 1)
        found |= dict.fromkeys(filter(None, (name, alias)), Spelling(name, alias, 0 if values == "0" else values))
    return found


@cache
def refused() -> Mapping[str, str]:
    """Return what to use instead of each option that mbr-perf refuses, by long name."""
    rows = [(f"--{pattern}", row["use"]) for row in _TABLE["refused"] for pattern in row["for"].split()]
    return {each.name: use for pattern, use in rows for each in spellings().values() if fnmatch(each.name, pattern)}


def in_our_words(args: Sequence[str], own: Mapping[str, bool]) -> list[str]:
    """Return the arguments in our words. BadRequestError with every option and override that mbr-perf does not take."""
    out: list[str] = []
    problems, rest = Problems(), list(args)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*out, word, *rest]
        name, equals, value = word.partition("=")
        theirs, has_value = spellings().get(name), _has_value(rest, equals)
        if theirs and (name not in own or _is_theirs(theirs, own[name], has_value)):
            given = [value] if equals else _values(theirs, rest)
            with problems.collecting():
                words = _ours(theirs.name, name, given)
                out += words if words and words[0] in own else ()  # not of jobs, where nothing starts
        elif theirs and theirs.values == "?" and not has_value:
            continue  # as in Megatron-Bridge, the option without its value asks for nothing
        elif name in own:
            num_values = int(own[name] and not equals)
            out += [word, *rest[:num_values]]
            del rest[:num_values]
        elif _HYDRA.fullmatch(word):
            problems.add(f"{word}: mbr-perf takes no overrides of Hydra", _override_remedy(word))
        else:
            out.append(word)
    problems.raise_if_any()
    return out


_HYDRA = re.compile(r"[+~]{0,2}[a-z_]+\.[A-Za-z0-9_.]+=.*", re.DOTALL)


def _is_theirs(theirs: Spelling, ours_takes_value: bool, has_value: bool) -> bool:
    """Tell whether an option that both have is meant as theirs: only theirs takes the value that it has."""
    return theirs.values == 1 and not ours_takes_value and has_value


def _has_value(rest: Sequence[str], equals: str = "") -> bool:
    following = rest[0] if rest else "--"
    return bool(equals) or not following.startswith("-") or following[1:].isdecimal()


def _values(theirs: Spelling, rest: list[str]) -> list[str]:
    found: list[str] = []
    most = {0: 0, 1: 1, "?": 1, "*": len(rest)}[theirs.values]
    while len(found) < most and _has_value(rest):
        found.append(rest.pop(0))
    return found


def _ours(name: str, typed: str, given: Sequence[str]) -> Words:
    """Return our words for an option; none for one of `run` that the command lacks, because it starts nothing."""
    if instead := refused().get(name):
        raise BadRequestError(f"{typed}: an option of Megatron-Bridge that mbr-perf does not have", remedy=instead)
    if name not in TAKEN:
        return ()
    row, text = TAKEN[name], given[0] if given else ""
    if spellings()[name].values and not text:
        raise BadRequestError(f"{typed}: a value is needed", remedy=f"it means {meaning(name)}")
    if name == _PARAMS:
        return _slurm_params(text)
    if not isinstance(row, str):
        row = _case(row, typed, text)
    try:
        number = scalar(float(text)) if "{number}" in row else ""
    except ValueError:
        raise BadRequestError(f"{typed}: {text!r} is not a number", remedy="write a number, e.g. 3e-4") from None
    parts = text.split(",") if "{each}" in row else [text]
    return tuple(word.format(part, each=part, number=number) for part in parts for word in row.split())


def _case(row: Mapping[str, str], typed: str, text: str) -> str:
    cases = {value.lower(): words for value, words in row.items()}
    value = _TRUTH.get(text.lower(), text.lower()) if "true" in cases else text.lower()
    if value not in cases:
        raise BadRequestError(f"{typed}: {text!r} is not possible", remedy=f"use {' or '.join(row)}, or leave it out")
    return cases[value]


def _slurm_params(text: str) -> Words:
    """Split as Megatron-Bridge does: at semicolons; without any, at blanks."""
    parts = [part.partition("=") for part in (text.split(";") if ";" in text else text.split())]
    unknown = [name for name, _, _ in parts if name.strip() not in ("", "exclusive", *_SLURM)]
    if unknown:
        known = ", ".join(f"--{each}" for each in _SLURM)
        message = f"{_PARAMS}: mbr-perf has no option for Slurm's {unknown[0].strip()!r}"
        raise BadRequestError(message, remedy=f"it has {known}")
    return tuple(word for name, _, value in parts if value for word in (f"--{name.strip()}", value.strip()))


def _override_remedy(word: str) -> str:
    from harness.foreign.settings import rows_of

    path, _, value = word.lstrip("+~").partition("=")
    if path.startswith("env_vars."):
        return f"use -E {shlex.quote(path.removeprefix('env_vars.') + '=' + value)}"
    ours = next((row.path for row in rows_of("bridge") if path in row.names), path)
    return "use --recompute" if ours == "recompute" else f"use --set {shlex.quote(f'{ours}={value}')}"


def meaning(name: str) -> str:
    """Return our options for an option of Megatron-Bridge, as help and the guide show them."""
    row = TAKEN[name]
    text = row if isinstance(row, str) else "; ".join(f"{value}: {words or 'accepted'}" for value, words in row.items())
    return re.sub(r"\{\w*\}", "VALUE", text) or "accepted"


def help_rows() -> Iterator[tuple[str, str]]:
    """Yield each option that other options of ours replace, and these; of several values the first."""
    return ((name, meaning(name).partition("; ")[0]) for name in TAKEN if "--" in meaning(name))
