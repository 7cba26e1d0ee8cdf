"""Reads leaves of an ExperimentSpec from the words of another program, by one row of settings.yaml for each leaf."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

from harness.foreign import conversions
from harness.foreign.words import Words
from harness.records.strict_yaml import table_in
from harness.resolve.recipe import LEAVES, Setting, Value

Program = Literal["bridge", "megatron"]
_PROGRAMS: tuple[Program, ...] = get_args(Program)


@dataclass(frozen=True)
class Row:
    """One leaf: its names in the words of a program, and the function of `conversions` that reads them.

    The first ``num_own`` names are the source of its value; the others decide what it means. The row exists only where
    ``only`` is on, because programs write defaults of parts that the model does not have.
    """

    path: str
    names: tuple[str, ...]
    conversion: str
    only: str = ""
    num_own: int = 1


@cache
def rows_of(program: Program) -> tuple[Row, ...]:
    """Return the rows of a program, in the order of the leaves."""
    table = table_in(Path(__file__).with_suffix(".yaml"))
    only = {path: row.only for path, row in _alike(table, program)}
    rows = dict(_alike(table, program))
    for path, text in table[program].items():
        conversion, names = ("as_written", text) if "(" not in text else text.rstrip(")").split("(")
        own, _, others = (part.split() for part in names.partition("|"))
        switch = only.get(path) or _only_of(path, table, program)
        rows[path] = Row(path, (*own, *others), conversion, switch, len(own))
    return tuple(sorted(rows.values(), key=lambda row: list(LEAVES).index(row.path)))


def _alike(table: Mapping[str, Any], program: Program) -> Iterator[tuple[str, Row]]:
    for group in table["alike"]:
        only = group.get("only", ("", ""))[_PROGRAMS.index(program)]
        prefix = f"{group['in']}." if program == "bridge" else ""
        for name in f"{group.get('both', '')} {group.get(program, '')}".split():
            path = f"{group['at']}.{name}"
            yield path, Row(path, (prefix + name,), group.get("as", "as_written"), only)


def _only_of(path: str, table: Mapping[str, Any], program: Program) -> str:
    """Return the setting that a section of the model needs."""
    section = path.rpartition(".")[0]
    alike = [group["only"] for group in table["alike"] if group["at"] == section and section.startswith("model.")]
    return str(alike[0][_PROGRAMS.index(program)]) if alike else ""


def settings_in(words: Words, program: Program) -> dict[str, Setting]:
    """Return the settings of every row; problems stay in ``words``. A null, or an absent name, sets nothing."""
    layer: dict[str, Setting] = {}
    for row in rows_of(program):
        words.read.update(row.names)
        if (row.only and not words.value(row.only)) or not (words.defaults or words.has(*row.names)):
            continue
        with words.problems.collecting():
            value = getattr(conversions, row.conversion)(words, *row.names)
            if isinstance(value, dict) and row.path == "env":
                layer |= {f"env.{name}": Setting(each, words.place(f"env_vars.{name}")) for name, each in value.items()}
            elif isinstance(value, Setting):
                layer[row.path] = value
            elif value is not None or row.path == "model.mla.q_lora_rank":
                layer[row.path] = Setting(_of_kind(value, row.path), words.place(*row.names[: row.num_own]))
    return layer


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
