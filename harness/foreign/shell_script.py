"""Reads the words of a launch script without running it: variables, arrays, quotes and continuations.

What a branch, a loop, or a test before `&&` and `||` decides is not known: the ``doubt`` of such a word names the line.
A word that only the running shell knows, as `$(...)` or a variable that the script does not set, keeps its `$`.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile

from harness.errors import BadRequestError

_BRACKETS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_QUOTED = r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\."""
# A layout such as Et|t|L may have lost its quotes: a pipe has blanks around it.
_PLAIN = rf"\$\{{[^}}]*\}}|{_BRACKETS}|[^\s;&|'\"\\()]|(?<=[^\s;&|'\"])\|(?=[^\s|&])"
_TOKEN = re.compile(
    rf"(?P<skip>(?:[^\S\n]|\\\n)+|#[^\n]*)|(?P<array>[A-Za-z_]\w*\+?=\((?!\())|(?P<word>(?:{_QUOTED}|{_PLAIN})+)"
    r"|(?P<end>&&|\|\||[\n;&|()])|(?P<open>['\"])",
    re.S,
)
_PART = re.compile(
    rf"""'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.)|(?P<plain>{_PLAIN})+""", re.S
)
_ESCAPED = re.compile(r"\\(?:\n|([\"$`\\]))")
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
_WHOLE = re.compile(r'("?)\$(?:(\w+)|\{(\w+)(\[[@*]\])?\})\1')
_VARIABLE = re.compile(r"\$(?:\{([^{}]*)\}|([A-Za-z_]\w*|[@*#?$!0-9]))")
_SUM = re.compile(r"\$\(\(([^()]*)\)\)")
_PRODUCT = re.compile(r"\d{1,9}(?:[*+]\d{1,9}){0,8}")
_BLOCKS = ("if", "case", "for", "while", "until")
_BLOCKS_END = ("fi", "esac", "done")
_CONNECTING = ("then", "elif", "else", "do", "time", "exec", "nohup")
_TESTS = ("[", "[[", "test", "!")
_EXPORTS = ("export", "declare", "local", "readonly")
_MOST_CHARACTERS = 50_000_000


@dataclass(frozen=True)
class Word:
    """One word of a command, and its line. ``doubt``: the line that decides whether it is there, empty if none does."""

    text: str
    line: int
    doubt: str = ""


_Words = dict[str, list[Word]]


@dataclass
class Script:
    """What a script says: its commands with variables put in, the variables, and the exported ones."""

    label: str
    commands: list[list[Word]] = field(default_factory=list)
    variables: _Words = field(default_factory=dict)
    exported: dict[str, Word] = field(default_factory=dict)
    num_characters: int = 0


def read_script(text: str, label: str, variables: _Words | None = None, first_line: int = 1) -> Script:
    """Return the commands of a script in order. BadRequestError for a quote or an array without an end."""
    script = Script(label, variables=dict(variables or {}))
    blocks: list[int] = []  # the first lines of the branches and loops around a command
    joined = ""  # the doubt of a command behind && or ||
    for command, connector in _commands(text.replace("\r\n", "\n"), label, first_line):
        rest = command
        while rest and (keyword := rest[0].text) in (*_BLOCKS, *_BLOCKS_END, *_CONNECTING):
            if keyword in _BLOCKS:
                blocks.append(rest[0].line)
            elif keyword in _BLOCKS_END:
                blocks = blocks[:-1]
            rest = [] if keyword in ("case", "for") else rest[1:]
        _take(script, rest, f"line {blocks[0]} decides about it" if blocks else joined)
        decides = rest and (connector == "||" or rest[0].text in _TESTS)
        joined = joined or f"line {rest[0].line} decides about it" if decides else joined
        joined = joined if connector in ("&&", "||") else ""
    return script


def _commands(text: str, label: str, line: int) -> Iterator[tuple[list[Word], str]]:
    """Split a script into commands of raw words; yield each with the connector behind it.

    An array is its name with ``=(``, its items, and ``)``.
    """
    command: list[Word] = []
    array: Word | None = None
    for token in _TOKEN.finditer(text):
        kind, found = token.lastgroup, token[0]
        if kind == "open":
            raise BadRequestError(f"{label}:{line}: a {found} without an end", remedy="close the quotes")
        if kind in ("array", "word") or (array and found == ")"):
            command.append(Word(found, line))
            array = command[-1] if kind == "array" else None if found == ")" else array
        elif kind == "end" and array is None:
            yield command, found
            command = []
        line += found.count("\n")
    if array:
        raise BadRequestError(f"{label}:{array.line}: {array.text} has no end", remedy="close it with )")
    yield command, ""


def _take(script: Script, command: list[Word], doubt: str) -> None:
    words: list[Word] = []
    exports = False
    rest = iter(command)
    for raw in rest:
        assigned = _ASSIGNS.match(raw.text)
        if assigned and (not words or exports):
            script.variables[assigned[1]] = _value(script, assigned, raw, rest, doubt)
            words += [Word(assigned[1], raw.line)] if exports else []
        elif not words and raw.text in _EXPORTS:
            exports = True
        else:
            words += _expanded(script, raw, doubt)
    if exports:
        names = [word.text for word in words if script.variables.get(word.text)]
        script.exported.update((name, script.variables[name][0]) for name in names)
    elif words:
        script.commands.append(words)


def _value(script: Script, assigned: re.Match[str], raw: Word, rest: Iterator[Word], doubt: str) -> list[Word]:
    """Return the new value of a variable: the items of an array, which follow in ``rest``, or one text."""
    before = script.variables.get(assigned[1], []) if assigned[2] else []
    if assigned[3] == "(":
        items = takewhile(lambda each: each.text != ")", rest)
        return [*before, *(word for each in items for word in _expanded(script, each, doubt))]
    words = _expanded(script, replace(raw, text=assigned[3]), doubt)
    value = Word(" ".join(word.text for word in words), raw.line, doubt or _first(word.doubt for word in words))
    if before and not value.text[:1].isspace():
        *before, last = before
        value = Word(last.text + value.text, raw.line, last.doubt or value.doubt)
    return [*before, value]


def _first(doubts: Iterable[str]) -> str:
    return next(filter(None, doubts), "")


def _expanded(script: Script, raw: Word, doubt: str) -> list[Word]:
    """Put variables into a raw word. Outside quotes blanks separate words; ``"${A[@]}"`` gives each item."""
    whole = _WHOLE.fullmatch(raw.text)
    name = (whole[2] or whole[3]) if whole else ""
    if whole and name in script.variables and (whole[4] or not whole[1]):
        found = [
            replace(word, text=text, doubt=doubt or word.doubt)
            for word in script.variables[name]
            for text in ([word.text] if whole[1] else word.text.split())
        ]
    else:
        found = _put_together(raw, script.variables, doubt)
    script.num_characters += sum(len(word.text) + 1 for word in found)
    if script.num_characters > _MOST_CHARACTERS:
        raise BadRequestError(f"{script.label}:{raw.line}: grows too long", remedy="write the arguments out")
    return found


def _put_together(raw: Word, known: _Words, doubt: str) -> list[Word]:
    doubts = [doubt]
    text = _PART.sub(lambda part: _unquoted(part, known, doubts), raw.text)
    is_quoted = bool(re.search(r"['\"\\]", raw.text))
    texts = [text] if is_quoted or "$" in text or "$" not in raw.text else text.split()
    return [Word(each, raw.line, _first(doubts)) for each in texts if each or is_quoted]


def _unquoted(part: re.Match[str], known: _Words, doubts: list[str]) -> str:
    if part["single"] is not None or part["escaped"] is not None:
        return part["single"] or (part["escaped"] or "").strip("\n")
    return _put_in(
        part[0] if part["double"] is None else _ESCAPED.sub(lambda m: m[1] or "", part["double"]), known, doubts
    )


def _put_in(text: str, known: _Words, doubts: list[str]) -> str:
    def of(name: str, otherwise: str) -> str:
        doubts.extend(word.doubt for word in known.get(name, ()))
        return " ".join(word.text for word in known.get(name, ())) or otherwise

    def value(match: re.Match[str]) -> str:
        name, colon, default = (match[1] or match[2]).partition(":-")
        name = name.removesuffix("[@]").removesuffix("[*]")
        unset = "" if name in known and not colon else match[0]
        return of(name, default if colon and "$" not in default else unset)

    def product(match: re.Match[str]) -> str:
        terms = re.sub(r"[A-Za-z_]\w*", lambda m: of(m[0], m[0]), match[1]).replace(" ", "")
        if not _PRODUCT.fullmatch(terms):
            return match[0]
        return str(sum(math.prod(map(int, term.split("*"))) for term in terms.split("+")))

    return _SUM.sub(product, _VARIABLE.sub(value, text))
