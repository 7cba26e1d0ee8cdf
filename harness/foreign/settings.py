"""Reads leaves of an ExperimentSpec from the words of another program, by one row of settings.yaml for each leaf."""

import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast, get_args

from harness.foreign import conversions
from harness.foreign.words import Words
from harness.records.strict_yaml import table_in
from harness.resolve.recipe import LEAVES, Setting, Value

Program = Literal["bridge", "megatron"]
_PROGRAMS: tuple[Program, ...] = get_args(Program)


@dataclass(frozen=True)
class Row:
    """One leaf: names of its value (the first ``num_own``) and meaning, and who reads them, where ``only`` is on."""

    path: str
    names: tuple[str, ...]
    conversion: str
    only: str = ""
    num_own: int = 1
    cases: tuple[tuple[Value, str], ...] = ()


@cache
def _table() -> Any:
    return table_in(Path(__file__).with_suffix(".yaml"))


def _row(path: str, text: str | list[tuple[Value, str]], only: str) -> Row:
    if not isinstance(text, str):
        names = dict.fromkeys(name for case in text for name in _names_of(*case))
        return Row(path, tuple(names), "cases", only, cases=tuple((value, conditions) for value, conditions in text))
    conversion, inner = ("as_written", text) if "(" not in text else text.rstrip(")").split("(")
    own, _, others = (part.split() for part in inner.partition("|"))
    return Row(path, (*own, *others), conversion, only, len(own))


def _names_of(value: Value, conditions: str) -> list[str]:
    own = [value[1:]] if isinstance(value, str) and value.startswith("=") else []
    return own + re.findall(r"(?:^|[ !])([a-zA-Z_][\w.]*)", conditions)


@cache
def rows_of(program: Program) -> tuple[Row, ...]:
    """Join the program's own rows with those of names that both programs share; its own count."""
    alike = dict(_alike(program))
    switches = {path.rpartition(".")[0]: row.only for path, row in alike.items() if path.startswith("model.")}
    own = {
        path: _row(path, text, alike[path].only if path in alike else switches.get(path.rpartition(".")[0], ""))
        for path, text in _table()[program].items()
    }
    rows = alike | own
    return tuple(rows[path] for path in LEAVES if path in rows)


@cache
def rows_of_keys(reader: str) -> tuple[Row, ...]:
    """Read the rows of ``hf`` in settings.yaml; none for an unknown reader."""
    return tuple(_row(path, text, "") for path, text in _table()["hf"].get(reader, {}).items())


def _alike(program: Program) -> Iterator[tuple[str, Row]]:
    for group in _table()["alike"]:
        only = group.get("only", ("", ""))[_PROGRAMS.index(program)]
        prefix = f"{group['in']}." if program == "bridge" else ""
        for name in f"{group.get('both', '')} {group.get(program, '')}".split():
            path = f"{group['at']}.{name}"
            yield path, Row(path, (prefix + name,), group.get("as", "as_written"), only)


def settings_in(words: Words, rows: Iterable[Row], functions: ModuleType = conversions) -> dict[str, Setting]:
    """Return the settings of rows; problems stay in ``words``. A null or absent name sets nothing."""
    layer: dict[str, Setting] = {}
    is_of_keys = functions is not conversions  # a null of theirs is a value, and a key of another class is not read
    for row in rows:
        own = row.names[: row.num_own]
        if not is_of_keys:
            words.read.update(row.names)
        if not _exists(words, row):
            continue
        num_problems = len(words.problems.found)
        with words.problems.collecting():
            value: Any = _chosen(words, row) if row.cases else getattr(functions, row.conversion)(words, *row.names)
            if row.path == "env":
                layer |= value
            elif isinstance(value, Setting):
                layer[row.path] = value
            elif value is not None or row.path == "model.mla.q_lora_rank" or (is_of_keys and words.has(*own)):
                layer[row.path] = Setting(_of_kind(value, row.path), words.place(*own))
        if row.path in words.settled:  # another value counts
            del words.problems.found[num_problems:]
            words.repaired.update(own)
    return layer


def _exists(words: Words, row: Row) -> bool:
    is_on = not row.only or bool(words.value(row.only))
    return is_on and (bool(words.defaults) or words.has(*row.names))


def _chosen(words: Words, row: Row) -> Setting | None:
    value, conditions = next((case for case in row.cases if words.holds(case[1])), (None, ""))
    names = _names_of(value, conditions)
    if isinstance(value, str) and value.startswith("="):
        value = conversions.short_name(words, value[1:])
    return None if value is None else Setting(_of_kind(value, row.path), words.place(*(names or row.names)))


def _of_kind(value: Value, path: str) -> Value:
    """Return a whole number as the leaf's kind of number: 1 is 1.0 and 500000.0 is 500000."""
    kinds = _kinds(cast(Hashable, LEAVES[path].annotation))
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds:
        return float(value)
    return int(value) if isinstance(value, float) and value.is_integer() and int in kinds else value


@cache
def _kinds(annotation: Hashable) -> frozenset[object]:
    inner = get_args(annotation)
    return frozenset({annotation}).union(*map(_kinds, inner)) if inner else frozenset({annotation})
