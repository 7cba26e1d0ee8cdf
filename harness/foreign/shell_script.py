"""Reads a command line, or a script that does no more than set variables and start commands; it runs nothing."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from harness.errors import BadRequestError

_BRACKETS = r"\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"
_TOKEN = re.compile(
    r"(?P<skip>[^\S\n]+|\\\n|(?<!\S)#[^\n]*)|(?P<end>[\n;])"
    rf"|(?P<word>(?:'[^']*'|\"(?:[^\"\\$]|\\.|\${_BRACKETS}|\$(?!\())*\"|\${_BRACKETS}|\$\{{[^{{}}\n]*\}}|\\[^\n]"
    r"|[^\s'\"\\;])+)|(?P<open>['\"\\])",
    re.S,
)
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_ELEMENTS = re.compile(r"(\"?)\$\{(\w+)\[[@*]\]\}\1")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_DEFAULT = re.compile(r"\$\{(\w+)(:?[-=])([^{}]*)\}")
_COMPUTED = re.compile(r"\$\(|\$\{\w*[^\w}]")
_LOGIC = re.compile(r"&&|\|\||;;|\w+\(\)|\w+\[.*\]\+?=.*|.*(?:`|<<).*", re.S)
_LEADS = ("if", "case", "for", "while", "until", "function", "select", "eval", "source", ".", "!", "[", "[[", "{", "(")
_ENDS_ARGUMENTS = re.compile(r"[|&]|\d?(?:<(?!<)|>).*|&>.*")


@dataclass(frozen=True)
class Word:
    """One word of a command, and its line. ``assumed``: the defaults of variables in it, as ``GPUS=8``."""

    text: str
    line: int
    assumed: tuple[str, ...] = ()


@dataclass
class Script:
    """Commands with variables put in, the variables, and the first ``logic``: what only a shell can run."""

    label: str
    commands: list[list[Word]] = field(default_factory=list)
    variables: dict[str, Word] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    exported: dict[str, Word] = field(default_factory=dict)
    logic: Word | None = None


def read_script(text: str, label: str) -> Script:
    """Return the commands of a script in order. BadRequestError for a quote without an end."""
    script = Script(label)
    for raw in _commands(text.replace("\r\n", "\n"), label):
        logic = (word for word in raw if _LOGIC.fullmatch(word.text) or (word is raw[0] and word.text in _LEADS))
        script.logic = script.logic or next(logic, None)
        _take(script, [part for word in raw for part in _expanded(word, script)])
    return script


def _take(script: Script, words: list[Word]) -> None:
    lead = words[0].text if words else ""
    if array := _ARRAY.fullmatch(lead):
        script.arrays[array[1]] = (script.arrays.get(array[1], []) if array[2] else []) + words[1:]
        script.variables.pop(array[1], None)
        return
    rest = words[lead in ("export", "unset") :]
    assigning = list(takewhile(lambda word: _ASSIGNS.match(word.text), rest))
    rest = rest[len(assigning) :]
    assigned = dict(_assigned(word, script) for word in assigning)
    script.variables |= assigned
    if lead == "unset":
        script.exported = {name: script.exported[name] for name in script.exported.keys() - {w.text for w in rest}}
    elif lead == "export":
        script.exported |= assigned | {w.text: script.variables[w.text] for w in rest if w.text in script.variables}
    elif rest:
        script.exported |= assigned  # of the command's own environment
        script.commands.append(rest)


def _assigned(word: Word, script: Script) -> tuple[str, Word]:
    """Return a variable and its value: its own name where only a shell knows it, so that a use of it is noticed."""
    name, adds, value = _ASSIGNS.findall(word.text)[0]
    if _COMPUTED.search(value):
        return name, Word(f"${name}", word.line)
    before = script.variables.get(name, Word(f"${name}", word.line)) if adds else Word("", word.line)
    return name, Word(before.text + value, word.line, before.assumed + word.assumed)


def _commands(text: str, label: str) -> Iterator[list[Word]]:
    command: list[Word] = []
    line, is_cut, is_array = 1, False, False
    for token in _TOKEN.finditer(text):
        kind, found = token.lastgroup, token[0]
        if kind == "open":
            raise BadRequestError(f"{label}:{line}: a {found} without an end", remedy="close the quotes")
        if kind == "end" and not is_array:
            yield command
            command, is_cut = [], False
        elif kind == "word":
            words, is_array = _parts(Word(found, line), is_first=not command, is_array=is_array)
            is_cut = is_cut or _ENDS_ARGUMENTS.fullmatch(found) is not None
            command += [] if is_cut else words
        line += found.count("\n")
    if is_array:
        raise BadRequestError(f"{label}:{command[0].line}: a ( without an end", remedy="close the array")
    yield command


def _parts(word: Word, *, is_first: bool, is_array: bool) -> tuple[list[Word], bool]:
    array = _ARRAY.match(word.text) if is_first else None
    if not (is_array or array):
        return [word], False
    ends = word.text.count(")") > word.text.count("(") - (array is not None)
    inside = word.text[array.end() if array else 0 : -1 if ends else None]
    texts = [array[0] if array else "", inside]
    return [Word(text, word.line) for text in texts if text], not ends


def _expanded(word: Word, script: Script) -> list[Word]:
    """Put variables into a raw word and take its quotes off. Outside quotes, blanks of a value separate words."""
    raw, assumed = word.text, list[str]()
    elements = _ELEMENTS.fullmatch(raw)
    if elements and elements[2] in script.arrays:
        return script.arrays[elements[2]]

    def value(found: re.Match[str]) -> str:
        known = script.variables.get(found[1] or found[2])
        assumed.extend(known.assumed if known else ())
        return known.text if known else found[0]

    def default(found: re.Match[str]) -> str:
        name, sign, usual = found.groups()
        known = script.variables.get(name)
        if known is None or (not known.text and ":" in sign):
            known = Word(usual, word.line, (f"{name}={usual}",))
            script.variables |= {name: known} if "=" in sign else {}
        assumed.extend(known.assumed)
        return known.text

    def filled(text: str) -> str:
        return _DEFAULT.sub(default, _VARIABLE.sub(value, text))

    if raw.startswith("'"):
        texts = shlex.split(raw)
    elif "$(" in raw:
        texts = [raw.replace('"', "")]
    elif '"' in raw or _ASSIGNS.match(raw):
        joined = raw.replace("\\\n", "")  # inside quotes, too, a shell continues the line
        texts = [filled(part) for part in shlex.split(joined)]
    else:
        texts = filled(raw).split() if "$" in raw else shlex.split(raw)
    return [Word(text, word.line, tuple(dict.fromkeys(assumed))) for text in texts]
