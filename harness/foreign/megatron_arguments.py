"""Reads arguments of Megatron-LM, from words or the block that a job prints, by a table of nine versions."""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from harness.errors import BadRequestError
from harness.foreign.shell_script import Word
from harness.foreign.words import Given, Unread, Words, suggested, unread
from harness.records.reading import PlainValue
from harness.records.strict_yaml import plain, table_in
from harness.units import shortened

Takes = Literal["flag", "off", "one", "many", "any"]


@dataclass(frozen=True)
class Argument:
    """One argument: its options and their words, its default by version, newest first; ``harmless``: without effect."""

    name: str
    options: Mapping[str, Takes]
    defaults: tuple[PlainValue, ...] = ()
    harmless: bool = False


@cache
def _table() -> dict[str, Any]:
    return cast(dict[str, Any], table_in(Path(__file__).with_suffix(".yaml")))


@cache
def arguments() -> Mapping[str, Argument]:
    """Return every argument of Megatron-LM by its name in the namespace."""
    rows = {
        name: {"options": _options(name.replace("_", "-"), group)} | group
        for group in _table()["alike"]
        for name in group["names"].split()
    } | _table()["spelled"]
    return {
        name: Argument(name, row["options"], plain(row.get("default", ())), "default" not in row)
        for name, row in sorted(rows.items())
    }


def _options(name: str, group: Mapping[str, Any]) -> dict[str, Takes]:
    on: dict[str, Takes] = {f"--{name}": group["takes"]} if "takes" in group else {}
    return on | {f"{word}-{name}": "off" for word in group.get("negated", "").split()}


@cache
def known() -> Mapping[str, Sequence[Unread]]:
    """Return what becomes of each argument that no setting reads; the usual row refuses it unless at its default."""
    rows = unread(_table()["unread"], usual=usual)
    return rows | {
        each.name: [Unread(None if each.harmless else usual(each.name), "mbr-perf does not model it", kind="unread")]
        for each in arguments().values()
        if each.name not in rows
    }


def other_models() -> Mapping[str, str]:
    """Return what mbr-perf does not model of models that are no GPT, by a pattern of their programs and arguments."""
    return cast(dict[str, str], _table()["other_models"])


def usual(name: str) -> tuple[PlainValue, ...]:
    """Return the values that change nothing: the defaults of all versions, or nothing."""
    own = arguments()[name].defaults if name in arguments() else ()
    return (*own, *((False,) if None in own else ()), None, (), "")


@cache
def options() -> Mapping[str, Argument]:
    """List arguments by option; an argument may have several, also ones that turn it off."""
    return {option: each for each in arguments().values() for option in each.options}


@cache
def families() -> tuple[str, ...]:
    """Return how arguments begin that have no row, because they change neither memory nor time."""
    return tuple(_table()["families"].split())


def argument_of(option: str) -> Argument | None:
    """Return the argument of an option, also of one that belongs to a family; None for an unknown one."""
    name = re.sub("^--(?:(?:no|disable)-)?", "", option).replace("-", "_")
    harmless = Argument(name, {option: "any"}, harmless=True) if name.startswith(families()) else None
    return options().get(option, harmless)


@cache
def _defaults() -> Mapping[str, PlainValue]:
    return {name: row.defaults[0] for name, row in arguments().items() if row.defaults}


@dataclass
class Arguments(Words):
    """Arguments by name. ``assumed``: a script's defaults; ``is_whole``: a job printed all; ``is_started``: it runs."""

    defaults: Mapping[str, PlainValue] = field(default_factory=_defaults)
    absent: str = "default of Megatron-LM"
    num_gpus: Given | None = None
    environment: dict[str, Given] = field(default_factory=dict)
    assumed: str = ""
    program: str = ""
    is_whole: bool = False
    is_test: bool = False
    is_started: bool = False


def captured_by(label: str) -> str:
    """Return what to do about arguments that only the running script knows."""
    return f"mbr-perf capture -- bash {label} runs the script without training; or name a log that prints the arguments"


UNKNOWN = "not an argument of Megatron-LM's GPT training that mbr-perf knows"


def _num_values(rest: list[Word]) -> int:
    return next((i for i, each in enumerate(rest) if each.text.startswith("--")), len(rest))


def from_words(words: Iterable[Word], label: str) -> Arguments:
    """Read the words of a command line, as Megatron-LM's parser takes them: the last of repeated options counts."""
    found, rest = Arguments(label), list(words)
    while rest:
        word = rest.pop(0)
        name, equals, inner = word.text.partition("=")
        argument = argument_of(name)
        place = f"{label}:{word.line}: {name}"
        if argument is None:
            _refuse_word(found, word, name)
            if name.startswith("--"):  # the words up to the next option are its values
                rest = rest[_num_values(rest) :]
            continue
        takes = argument.options[name]
        count = {"flag": 0, "off": 0, "one": 1}.get(takes, _num_values(rest))
        values = [Word(inner, word.line)][:count] if equals else rest[:count]
        rest = rest[0 if equals else count :]
        if not values and takes in ("one", "many"):
            found.problems.add(f"{place}: has no value", "write the value after it")
        elif not argument.harmless and (open_ := next((each.text for each in values if "$" in each.text), "")):
            found.problems.add(f"{place}: not certain: only a shell knows {shortened(open_)}", captured_by(label))
        else:
            value = _joined([each.text for each in values], takes) if values else takes != "off"
            found.given[argument.name] = Given(value, place)
    return found


def _refuse_word(found: Arguments, word: Word, name: str) -> None:
    place = f"{found.label}:{word.line}: {shortened(name)}"
    if name.startswith("--"):
        found.problems.add(f"{place}: {UNKNOWN}", suggested(name, options()))
    elif name not in ("$@", "$*", "${@}"):
        remedy = f"an option starts with --; if only a shell knows it: {captured_by(found.label)}"
        found.problems.add(f"{place}: belongs to no option", remedy)


def _joined(texts: list[str], takes: Takes) -> PlainValue:
    if takes == "many" or len(texts) > 1:
        inner = " ".join(texts)
        if not inner.startswith("([") and not re.fullmatch(r"\[[01, ]*\].*", inner):
            texts = inner.strip("[]").replace(",", " ").replace("'", "").replace('"', "").split()
        found = tuple(literal(text) for text in texts)
        return found if len(found) != 1 or isinstance(found[0], str) else found[0]
    return literal(texts[0])


def literal(text: str) -> PlainValue:
    """Return a number, True, False, None or a list, as a tuple, as Python reads it; any other text as it is."""
    text = text.strip()
    if not re.fullmatch(r"[-\d.][\d.eE+-]{0,40}|True|False|None|[\[(].{0,1000000}", text, re.DOTALL):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return int(text) if text.isdecimal() else text  # 007
    found: PlainValue = plain(value)
    return found


_BLOCK_LINE = re.compile(r"(?:^|\s)([A-Za-z_]\w{0,80}) \.{2,120}(?: (.*))?$")
_PADDED = re.compile(r"\bpadded vocab \(size: (\d{1,9})\)")
_BEGINS, BLOCK_ENDS = re.compile(r"-{3,} arguments -{3,}"), re.compile(r"-{3,} end of arguments -{3,}")


def begins_block(text: str) -> bool:
    """Return whether a line begins the arguments that a job prints."""
    return "arguments ---" in text and _BEGINS.search(text) is not None


def tokens_in(text: str) -> int | None:
    """Return the vocabulary's size from the line that Megatron-LM prints when it pads it, behind its arguments."""
    match = _PADDED.search(text) if "padded vocab (" in text else None
    return int(match[1]) if match else None


def from_block(lines: Iterable[tuple[str, str]], label: str) -> Arguments | None:
    """Read the last block of arguments in a log; None without one. BadRequestError if it is empty."""
    found: Arguments | None = None
    inside = False
    for text, place in lines:
        if begins_block(text):
            found, inside = Arguments(label, is_whole=True), True
        elif inside and BLOCK_ENDS.search(text):
            inside = False
        elif found is not None and (tokens := tokens_in(text)):
            if found.peek("vocab_size") is None:
                found.given["vocab_size"] = Given(tokens, f"{place}: padded vocab")
        elif inside and found is not None and (match := _BLOCK_LINE.search(text)):
            found.given.setdefault(match[1], Given(literal(match[2] or ""), f"{place}: {match[1]}"))
    if found is None:
        return None
    if not found.given:
        raise BadRequestError(f"{label}: its block of arguments is empty", remedy="give the whole log")
    found.num_gpus = _world_size(found)
    return found


def _world_size(found: Arguments) -> Given | None:
    given = found.given.get("world_size")
    if given and type(given.value) is not int:
        found.refuse("world_size", f"{shortened(str(given.value))}: no number of GPUs", "give the whole log")
    return given if given and type(given.value) is int else None
