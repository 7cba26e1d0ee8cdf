"""Reads YAML strictly, as plain values with the line of each."""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from harness.errors import BadRequestError, Problems
from harness.records.reading import Document, PlainValue, ScalarValue, path_text, read_text
from harness.records.refusing import Keys
from harness.units import shortened

MAX_DIGITS = 100
MAX_DEPTH = 20
MAX_ALIASES = 100  # of a file that PyYAML wrote; an alias never repeats another, so a value stays small
_WORDS: dict[str, ScalarValue] = {"true": True, "false": False, "null": None, "~": None, "": None}
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+][0-9]+)?")
_MAY_BE_A_NUMBER = frozenset("+-.0123456789iInN")
# Controls but tab, and the separators of lines and paragraphs: every text of a file is shown on one line.
_CONTROL = re.compile("[\x00-\x08\n-\x1f\x7f-\x9f\u2028\u2029]")
_SET = "tag:yaml.org,2002:set"  # the one tag of Python that PyYAML's safe dumper writes for plain data
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where PyYAML was built with it


def table_in(path: Path) -> Any:
    """Read a table of the package."""
    return _LOADER(path.read_bytes()).get_single_data()


def plain(value: Any) -> Any:
    """Return a value with tuples in place of its lists."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def read_plain(text: str) -> ScalarValue:
    """Read an unquoted scalar; BadRequestError if readers of YAML disagree on it, or it is out of bounds."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            message = f"{shortened(text, 23)!r} is too long a number: it has {len(text)} digits"
            raise BadRequestError(message, remedy=f"write at most {MAX_DIGITS} digits")
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise BadRequestError(f"{text!r} is not a finite number", remedy="write a finite number")
        return number
    if _is_ambiguous(text):
        fix = "quote it if it is text; write numbers as in 8, 0.5 or 1.0e-3, booleans as true or false"
        raise BadRequestError(f"{text!r} is ambiguous: some readers of YAML take it for another value", remedy=fix)
    return text


def _is_ambiguous(text: str) -> bool:
    if any(pattern.match(text) for _, pattern in yaml.SafeLoader.yaml_implicit_resolvers.get(text[0], ())):
        return True
    for read in (float, lambda number: int(number, 0)) if text[0] in _MAY_BE_A_NUMBER else ():
        with suppress(ValueError):
            read(text)
            return True
    return False


def read_yaml(path: Path, label: str, *, by_pyyaml: bool = False) -> Document:
    """Read the one document of a file, as :func:`parse_yaml`, after :func:`read_text`."""
    return parse_yaml(read_text(path, label), label, by_pyyaml=by_pyyaml)


def parse_yaml(text: str, label: str, *, with_lines: bool = True, by_pyyaml: bool = False) -> Document:
    """Read the one document of ``text``. BadRequestError with every problem, as ``label:line: message``.

    Refuses what readers of YAML disagree on, anchors, tags, and more than 20 levels. ``with_lines``: not for an option.
    ``by_pyyaml``: a program wrote it with PyYAML or as JSON, so scalars are YAML 1.1's, and aliases repeat values.
    """
    reader = _Reader(label, with_lines=with_lines, by_pyyaml=by_pyyaml)
    reader.problems.tried(lambda: reader.document(text))
    reader.problems.raise_if_any()
    if () not in reader.lines:
        raise BadRequestError(f"{reader.place(1)}: empty document", remedy="write at least one key")
    return Document(label, reader.root, reader.lines)


class _Reader:
    """Builds the value from libyaml's events, whose depth has a bound, and collects what it refuses."""

    events: Iterator[yaml.Event]

    def __init__(self, label: str, *, with_lines: bool, by_pyyaml: bool) -> None:
        self.label, self.with_lines, self.by_pyyaml = label, with_lines, by_pyyaml
        self.root: PlainValue = None
        self.lines: dict[Keys, int] = {}
        self.anchored: dict[str, PlainValue] = {}
        self.aliases = 0
        self.problems = Problems()

    def refuse(self, line: int, message: str, fix: str) -> None:
        self.problems.add(f"{self.place(line)}: {message}", fix)

    def place(self, line: int) -> str:
        return f"{self.label}:{line}" if self.with_lines else self.label

    def document(self, text: str) -> None:
        try:
            self.events = iter(yaml.parse(text, Loader=_LOADER))
            for event in self.events:
                if isinstance(event, yaml.DocumentStartEvent):
                    if self.lines:
                        self.refuse(_line(event), "a second document", "keep one document per file")
                        break
                    self.root = self.node(next(self.events), ())
        except yaml.YAMLError as error:
            mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
            fix = "check brackets, quotes and indentation near this line; remove tabs and control characters"
            self.refuse(mark.line + 1 if mark else 1, f"not YAML: {problem or ' '.join(str(error).split())}", fix)

    def node(self, event: yaml.Event, keys: Keys) -> PlainValue:
        line = _line(event)
        self.lines.setdefault(keys, line)
        if len(keys) > MAX_DEPTH:
            raise BadRequestError(f"{self.place(line)}: more than {MAX_DEPTH} levels", remedy="flatten the document")
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor is not None and not self.by_pyyaml:
            self.refuse(line, f"anchors and aliases are not allowed ({anchor})", "write the value out")
        if tag is not None and not (self.by_pyyaml and tag == _SET):
            self.refuse(line, f"tags are not allowed ({tag})", "remove the tag")
        if isinstance(event, yaml.AliasEvent):
            return self.alias(anchor, line) if self.by_pyyaml else None
        before, value = self.aliases, self.value(event, keys)
        if anchor is not None and self.aliases == before:
            self.anchored[anchor] = value
        return value

    def value(self, event: yaml.Event, keys: Keys) -> PlainValue:
        if isinstance(event, yaml.SequenceStartEvent):
            inside = takewhile(lambda each: not isinstance(each, yaml.SequenceEndEvent), self.events)
            return tuple(self.node(each, (*keys, place)) for place, each in enumerate(inside))
        if isinstance(event, yaml.MappingStartEvent):
            return self.table(keys)
        assert isinstance(event, yaml.ScalarEvent)
        return self.scalar(event, keys)

    def alias(self, anchor: str | None, line: int) -> PlainValue:
        self.aliases += 1
        if anchor in self.anchored and self.aliases <= MAX_ALIASES:
            return self.anchored[anchor]
        message = f"alias {anchor} repeats an alias, or is one of more than {MAX_ALIASES}"
        self.refuse(line, message, "write the value out")
        return None

    def scalar(self, event: yaml.ScalarEvent, keys: Keys) -> ScalarValue:
        text = str(event.value)
        if event.implicit[0]:
            try:
                return read_plain(text)
            except BadRequestError as error:
                if self.by_pyyaml:
                    with suppress(ValueError):  # of Python, for a number of more digits than it reads
                        value = yaml.safe_load(text)  # a date stays text
                        return value if isinstance(value, bool | int | float | str | None) else text
                self.refuse(_line(event), error.message, error.remedy)
                return None
        if event.style in ("|", ">"):  # whose last line break is the file's, not the text's
            text = text.rstrip("\n")
        if not self.by_pyyaml and (found := _CONTROL.search(text)):
            message = f"{path_text(keys)}: holds a line break or a control character, {ascii(found[0])[1:-1]}"
            self.refuse(
                _line(event), message, "write it on one line; a block that > begins may fill several in the file"
            )
        return text

    def table(self, keys: Keys) -> dict[str, PlainValue]:
        entries: dict[str, PlainValue] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line, key = _line(event), self.key(event, keys)
            inner = (*keys, "?" if key is None else key)
            if key in entries:
                self.refuse(line, f"duplicate key '{key}', first on line {self.lines[inner]}", "keep one of them")
            self.lines.setdefault(inner, line)
            value = self.node(next(self.events), inner)
            if key is not None:
                entries.setdefault(key, value)
        return entries

    def key(self, event: yaml.Event, keys: Keys) -> str | None:
        line, key = _line(event), self.node(event, (*keys, "a key"))
        del self.lines[(*keys, "a key")]
        if isinstance(key, str):
            return key
        self.refuse(line, "a key is not text", "quote the key")
        return None


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1
