"""Reads YAML strictly, with file and line of every value."""

import math
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from harness.errors import BadRequestError, Problems, os_errors_reported
from harness.units import shortened

ScalarValue = None | bool | int | float | str

_WORDS: dict[str, ScalarValue] = {"true": True, "false": False, "null": None, "~": None, "": None}
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+][0-9]+)?")
_MAY_BE_A_TRAP = frozenset("+-.0123456789yYnNoOtTfF")

_TRAPS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), what, fix)
    for pattern, what, fix in (
        (r"(?i:yes|no|on|off|y|n)", "YAML 1.1 reads it as a boolean, YAML 1.2 as text", "write true or false, or quote it"),
        (r"(?i:true|false)", "only true and false are booleans", "write it in lower case, or quote it"),
        (r"(?i:null)", "only null is null", "write null, or quote it"),
        (r"(?i:[-+]?\.(?:inf|nan))", "it is not a finite number", "write a finite number"),
        (r"[-+]?0[0-9_]+", "YAML 1.1 reads a leading zero as octal", "drop the zero, or quote it"),
        (r"[-+]?0[xXoObB][0-9a-fA-F_]+", "it is not decimal", "write it in decimal, or quote it"),
        (r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", "YAML 1.1 reads it in base 60", "quote it"),
        (r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?", "YAML 1.1 reads it as a date", "quote it"),
        (r"\+[0-9.].*", "numbers carry no plus sign", "drop the plus, or quote it"),
        (r"-?[0-9][0-9_]*_[0-9_.]*", "YAML versions differ on digits with underscores", "drop the underscores"),
        (r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+", "YAML 1.1 reads it as text",
         "write digits on both sides of the point and a signed exponent, as in 1.0e-3"),
        (r"-?(?:\.[0-9]+|[0-9]+\.)", "a number has digits on both sides of the point", "write it as in 0.5 or 1.0"),
    )
)  # fmt: skip


class ScalarError(ValueError):
    """A plain scalar that is no value of a file: readers of YAML disagree on it, or it is out of bounds."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def read_plain(text: str) -> ScalarValue:
    """Read the value of an unquoted scalar; ScalarError if readers of YAML disagree on it, or it is out of bounds."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _MAY_BE_A_TRAP:
        return text
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise ScalarError(
                f"{shortened(text, 23)!r} is too long a number: it has {len(text)} digits",
                f"write at most {MAX_DIGITS} digits",
            )
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise ScalarError(f"{text!r} is not a finite number", "write a finite number")
        return number
    for pattern, what, fix in _TRAPS:
        if pattern.fullmatch(text):
            raise ScalarError(f"{text!r} is ambiguous: {what}", fix)
    return text


MAX_DIGITS = 100
MAX_BYTES = 1024 * 1024
MAX_DEPTH = 12
MAX_ALIASES = 100  # of a file that PyYAML wrote; an alias never repeats another, so a value stays small
# Controls but tab, and the separators of lines and paragraphs: every text of a file is shown on one line.
_CONTROL = re.compile("[\x00-\x08\n-\x1f\x7f-\x9f\u2028\u2029]")
_BLOCKS = ("|", ">")
_SET = "tag:yaml.org,2002:set"  # the one tag of Python that PyYAML's safe dumper writes for plain data
_BREAKS = "\n\x0b\x0c\r\x85\u2028\u2029"
_LOADER = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # libyaml where PyYAML was built with it; only its parser is used

PlainValue = ScalarValue | tuple["PlainValue", ...] | dict[str, "PlainValue"]


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value."""

    value: ScalarValue
    line: int


@dataclass(frozen=True, slots=True)
class Items:
    """A sequence."""

    nodes: tuple["Node", ...]
    line: int


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping with text keys; ``key_lines`` has the line of each key."""

    entries: dict[str, "Node"]
    key_lines: dict[str, int]
    line: int


Node = Scalar | Items | Table


def plain(node: Node) -> PlainValue:
    """Return the value without lines; sequences become tuples."""
    match node:
        case Scalar(value=value):
            return value
        case Items(nodes=nodes):
            return tuple(plain(n) for n in nodes)
        case Table(entries=entries):
            return {key: plain(n) for key, n in entries.items()}


def read_yaml(path: Path, label: str, *, by_pyyaml: bool = False) -> Node:
    """Read the one document of a file; every problem is reported as ``label:line: message``.

    Raises BadRequestError for all that :func:`read_text` and :func:`parse_yaml` refuse.
    """
    return parse_yaml(read_text(path, label), label, by_pyyaml=by_pyyaml)


def read_text(path: Path, label: str, *, most_bytes: int = MAX_BYTES) -> str:
    """Read a file of at most ``most_bytes``. BadRequestError if it cannot be read, is no file, not UTF-8 or larger."""
    with os_errors_reported(f"{label}: cannot be read", "check the path"):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise BadRequestError(
                f"{label}: a pipe or a device, not a file", remedy="save its content to a file, and name that file"
            )
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise BadRequestError(
            f"{label}: larger than {most_bytes >> 20} MiB",
            remedy="such a file has a few KiB; is this the right file?",
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadRequestError(f"{label}:{line}: not UTF-8", remedy="save the file as UTF-8") from error


def parse_yaml(text: str, label: str, *, with_lines: bool = True, by_pyyaml: bool = False) -> Node:
    """Read the one document of ``text``.

    Refuses, all at once: duplicate keys, anchors, aliases, merge keys, tags, several documents, ambiguous scalars,
    keys that are not text, line breaks and control characters in text, more than 12 levels. ``with_lines=False`` leaves
    line numbers out of messages, for text that came from an option. ``by_pyyaml``: a program wrote the text with
    PyYAML, so scalars mean what YAML 1.1 says, text may have several lines, a set is a mapping, and an alias repeats a value.
    """
    reader = _Reader(label, with_lines=with_lines, by_pyyaml=by_pyyaml)
    node: Node | None = None
    with reader.problems.collecting():
        node = reader.document(text)
    reader.problems.raise_if_any()
    if node is None:
        raise BadRequestError(f"{reader.place(1)}: empty document", remedy="write at least one key")
    return node


class _Reader:
    """Builds the tree from libyaml's events and collects what it refuses."""

    def __init__(self, label: str, *, with_lines: bool, by_pyyaml: bool) -> None:
        self.label = label
        self.with_lines = with_lines
        self.by_pyyaml = by_pyyaml
        self.anchored: dict[str, Node] = {}
        self.aliases = 0
        self.problems = Problems()

    def refuse(self, line: int, message: str, fix: str) -> None:
        self.problems.add(f"{self.place(line)}: {message}", fix)

    def place(self, line: int) -> str:
        return f"{self.label}:{line}" if self.with_lines else self.label

    def document(self, text: str) -> Node | None:
        root: Node | None = None
        documents = 0
        try:
            events = iter(yaml.parse(text, Loader=_LOADER))
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        self.refuse(_line(event), "a second document", "keep one document per file")
                        break
                    root = self.node(next(events), events, 0)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.refuse(mark.line + 1 if mark else 1, f"not YAML: {error.problem or error.context}", _syntax_fix(error))
        except yaml.YAMLError as error:
            self.refuse(1, f"not YAML: {' '.join(str(error).split())}", "remove control characters")
        return root

    def node(self, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
        line = _line(event)
        if depth > MAX_DEPTH:
            raise BadRequestError(f"{self.place(line)}: more than {MAX_DEPTH} levels", remedy="flatten the document")
        if isinstance(event, yaml.AliasEvent) and self.by_pyyaml:
            return self.alias(event.anchor, line)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None and not self.by_pyyaml:
            self.refuse(line, f"anchors and aliases are not allowed ({event.anchor})", "write the value out")
        tag = getattr(event, "tag", None)  # scalars and collections have one, aliases do not
        if tag is not None and not (self.by_pyyaml and tag == _SET):
            self.refuse(line, f"tags are not allowed ({tag})", "remove the tag")
        before = self.aliases
        node = self.value(event, events, line, depth)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None and self.aliases == before:
            self.anchored[event.anchor] = node
        return node

    def value(self, event: yaml.Event, events: Iterator[yaml.Event], line: int, depth: int) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(self.scalar(event), line)
        if isinstance(event, yaml.SequenceStartEvent):
            return Items(tuple(self.items(events, depth)), line)
        if isinstance(event, yaml.MappingStartEvent):
            return self.table(events, line, depth)
        return Scalar(None, line)  # an alias, refused before

    def alias(self, anchor: str | None, line: int) -> Node:
        self.aliases += 1
        if anchor is None or anchor not in self.anchored or self.aliases > MAX_ALIASES:
            self.refuse(
                line, f"alias {anchor} repeats an alias, or is one of more than {MAX_ALIASES}", "write the value out"
            )
            return Scalar(None, line)
        return self.anchored[anchor]

    def scalar(self, event: yaml.ScalarEvent) -> ScalarValue:
        if event.style in _BLOCKS:  # whose last line break is the file's, not the text's
            return str(event.value).rstrip("\n")
        if not event.implicit[0]:
            return str(event.value)
        try:
            return read_plain(event.value)
        except ScalarError as error:
            if self.by_pyyaml:
                with suppress(ValueError):  # of Python, for a number of more digits than it reads
                    return _yaml_1_1(event.value)
            self.refuse(_line(event), str(error), error.fix)
            return None

    def items(self, events: Iterator[yaml.Event], depth: int) -> Iterator[Node]:
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            yield self.node(event, events, depth + 1)

    def table(self, events: Iterator[yaml.Event], line: int, depth: int) -> Table:
        entries: dict[str, Node] = {}
        key_lines: dict[str, int] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key_line = _line(event)
            key = self.key(self.node(event, events, depth + 1), key_line)
            value = self.node(next(events), events, depth + 1)
            if key is None:
                continue
            if not self.by_pyyaml:
                self.require_one_line(key, value)
            if key in entries:
                self.refuse(key_line, f"duplicate key '{key}', first on line {key_lines[key]}", "keep one of them")
                continue
            entries[key], key_lines[key] = value, key_line
        return Table(entries, key_lines, line)

    def require_one_line(self, key: str, node: Node) -> None:
        """Refuse line breaks and terminal control characters in a text or a list of texts."""
        for each in node.nodes if isinstance(node, Items) else (node,):
            if isinstance(each, Scalar) and isinstance(each.value, str) and _CONTROL.search(each.value):
                fix = "write it on one line; a block that > begins may fill several in the file"
                self.refuse(each.line, f"{key}: {_held(each.value)}", fix)

    def key(self, node: Node, line: int) -> str | None:
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            self.refuse(line, "a key is not text", "quote the key")
            return None
        if _CONTROL.search(node.value):
            self.refuse(line, f"a key {_held(node.value)}", "write it on one line, of visible characters")
            return None
        if node.value == "<<":
            self.refuse(line, "merge keys are not allowed", "write the values out")
            return None
        return node.value


def _yaml_1_1(text: str) -> ScalarValue:
    """Read a scalar as YAML 1.1 does, because PyYAML wrote it; dates stay text."""
    value = yaml.safe_load(text)
    return value if isinstance(value, bool | int | float | str | None) else text


def _held(text: str) -> str:
    found = _CONTROL.search(text)
    assert found is not None
    kind = "line break" if found[0] in _BREAKS else "control character"
    return f"holds a {kind}, {ascii(found[0])[1:-1]}"


def _syntax_fix(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or ""
    if "cannot start any token" in problem or "tab" in problem:
        return "indent with spaces, not tabs, and quote text that starts with % @ or `"
    return "check brackets, quotes and indentation near this line"


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1
