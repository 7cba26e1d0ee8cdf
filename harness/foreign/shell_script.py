"""Reads a command line, or a script that does no more than set variables and start commands; it runs nothing."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from harness.errors import BadRequestError

_TOKEN = re.compile(
    r"(?P<skip>[^\S\n]+|\\\n|(?<!\S)#[^\n]*)|(?P<end>[\n;])"
    r"|(?P<word>(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\[^\n]|[^\s'\"\\;])+)"
    r"|(?P<open>['\"\\])",
    re.S,
)
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_LOGIC = re.compile(r"&&|\|\||;;|\w+\(\)|\w+\+?=\(.*|\w+\+=.*|.*(?:\$\(|\$\{\w*[^\w}]|`|<<).*", re.S)
_LEADS = ("if", "case", "for", "while", "until", "function", "select", "eval", "source", ".", "!", "[", "[[", "{", "(")
_ENDS_ARGUMENTS = re.compile(r"[|&]|\d?(?:<(?!<)|>).*|&>.*")


@dataclass(frozen=True)
class Word:
    """One word of a command, and its line."""

    text: str
    line: int


@dataclass
class Script:
    """Commands with variables put in, the variables, and the first ``logic``: what only a shell can run."""

    label: str
    commands: list[list[Word]] = field(default_factory=list)
    variables: dict[str, Word] = field(default_factory=dict)
    exported: dict[str, Word] = field(default_factory=dict)
    logic: Word | None = None


def read_script(text: str, label: str) -> Script:
    """Return the commands of a script in order. BadRequestError for a quote without an end."""
    script = Script(label)
    for raw in _commands(text.replace("\r\n", "\n"), label):
        logic = (word for word in raw if _LOGIC.fullmatch(word.text) or (word is raw[0] and word.text in _LEADS))
        script.logic = script.logic or next(logic, None)
        _take(script, [Word(part, word.line) for word in raw for part in _expanded(word.text, script.variables)])
    return script


def _take(script: Script, words: list[Word]) -> None:
    lead = words[0].text if words else ""
    rest = words[lead in ("export", "unset") :]
    assigning = list(takewhile(lambda word: _ASSIGNS.match(word.text), rest))
    rest = rest[len(assigning) :]
    assigned = {name: Word(value, word.line) for word in assigning for name, value in _ASSIGNS.findall(word.text)}
    script.variables |= assigned
    if lead == "unset":
        script.exported = {name: script.exported[name] for name in script.exported.keys() - {w.text for w in rest}}
    elif lead == "export":
        script.exported |= assigned | {w.text: script.variables[w.text] for w in rest if w.text in script.variables}
    elif rest:
        script.exported |= assigned  # of the command's own environment
        script.commands.append(rest)


def _commands(text: str, label: str) -> Iterator[list[Word]]:
    command: list[Word] = []
    line, is_cut = 1, False
    for token in _TOKEN.finditer(text):
        kind, found = token.lastgroup, token[0]
        if kind == "open":
            raise BadRequestError(f"{label}:{line}: a {found} without an end", remedy="close the quotes")
        if kind == "end":
            yield command
            command, is_cut = [], False
        elif kind == "word":
            is_cut = is_cut or _ENDS_ARGUMENTS.fullmatch(found) is not None
            command += [] if is_cut else [Word(found, line)]
        line += found.count("\n")
    yield command


def _expanded(raw: str, variables: Mapping[str, Word]) -> list[str]:
    """Put variables into a raw word and take its quotes off. Outside quotes, blanks of a value separate words."""
    if raw.startswith("'"):
        return shlex.split(raw)

    def value(found: re.Match[str]) -> str:
        known = variables.get(found[1] or found[2])
        return known.text if known else found[0]

    if '"' in raw or _ASSIGNS.match(raw):
        joined = raw.replace("\\\n", "")  # inside quotes, too, a shell continues the line
        return [_VARIABLE.sub(value, word) for word in shlex.split(joined)]
    return _VARIABLE.sub(value, raw).split() if "$" in raw else shlex.split(raw)
