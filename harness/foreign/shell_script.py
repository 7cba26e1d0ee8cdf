"""Reads a command line, or a script that does no more than set variables and start commands; it runs nothing."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.errors import BadRequestError

_TOKEN = re.compile(
    r"(?P<skip>[^\S\n]+|\\\n|(?<!\S)#[^\n]*)|(?P<end>[\n;])|(?P<word>(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\[^\n]|[^\s'\"\\;])+)"
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
    """Commands with variables put in, the exported variables, and the first ``logic``: what only a shell can run."""

    label: str
    commands: list[list[Word]] = field(default_factory=list)
    exported: dict[str, Word] = field(default_factory=dict)
    logic: Word | None = None


def read_script(text: str, label: str) -> Script:
    """Return the commands of a script in order. BadRequestError for a quote without an end."""
    script, variables = Script(label), dict[str, str]()
    for raw in _commands(text.replace("\r\n", "\n"), label):
        logic = (word for word in raw if _LOGIC.fullmatch(word.text) or (word is raw[0] and word.text in _LEADS))
        script.logic = script.logic or next(logic, None)
        words = [Word(part, word.line) for word in raw for part in _expanded(word.text, variables)]
        lead = words[0].text if words else ""
        rest = list(words[lead in ("export", "unset") :])
        num = next((at for at, word in enumerate(rest) if not _ASSIGNS.match(word.text)), len(rest))
        assigned = {name: Word(value, word.line) for word in rest[:num] for name, value in _ASSIGNS.findall(word.text)}
        variables |= {name: word.text for name, word in assigned.items()}
        if lead == "unset":
            for word in rest:
                script.exported.pop(word.text, None)
        elif lead == "export":
            script.exported |= assigned | {
                word.text: Word(variables[word.text], word.line) for word in rest[num:] if word.text in variables
            }
        elif rest[num:]:
            script.exported |= assigned  # of the command's own environment
            script.commands.append(rest[num:])
    return script


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


def _expanded(raw: str, variables: dict[str, str]) -> list[str]:
    """Put variables into a raw word and take its quotes off. Outside quotes, blanks of a value separate words."""
    if raw.startswith("'"):
        return shlex.split(raw)

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1] or found[2], found[0])

    if '"' in raw or _ASSIGNS.match(raw):
        return [_VARIABLE.sub(value, word) for word in shlex.split(raw)]
    return _VARIABLE.sub(value, raw).split() if "$" in raw else shlex.split(raw)
