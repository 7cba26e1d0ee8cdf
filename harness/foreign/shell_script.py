"""Reads the words of a shell script's commands: variables, arrays, quotes and continuations, without running anything.

Some values are known to a running shell only: an unset variable, `$(...)`, a branch whose test the script does not
decide. Such a word keeps its `$`, or its ``doubt`` names the line that decides about it.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from harness.errors import BadRequestError
from harness.foreign.shell_branches import BLOCKS, TESTS, Branches

_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(\(?)")
_PIECES = (
    r"(?P<skip>[ \t]+|(?<![^\s;&|(])(?:#[^\n]*|\\\n))"
    r"""|'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<open>['"])|\\(?P<escaped>.)"""
)
_INNER = r"\((?:[^()]|\([^()]*\))*\)"
_BRACKETS = rf"\((?:[^()]|{_INNER})*\)"
_PLAIN = r"[^\s;&|'\"\\$()]+|."
# A layout such as Et|t|L may have lost its quotes: a pipe has blanks around it.
_LAYOUT = r"(?P<layout>(?<=[^\s;&|'\"])\|(?=[^\s|&]))"
_TOKEN = re.compile(
    rf"{_PIECES}|{_LAYOUT}|(?P<end>&&|\|\||[\n;&|])|(?P<plain>\$\{{[^}}]*\}}|\${_BRACKETS}|{_PLAIN})", re.S
)
_ITEM = re.compile(rf"{_PIECES}|(?P<line>\n)|(?P<close>\))|(?P<plain>\$\{{[^}}]*\}}|\$?{_BRACKETS}|{_PLAIN})", re.S)
_ESCAPED = re.compile(r"\\(?:\n|([\"$`\\]))")
_VARIABLE = re.compile(r"\$(?:\{([^{}]*)\}|([A-Za-z_][A-Za-z0-9_]*|[@*#?$!0-9]))")
_SUM = re.compile(r"\$\(\(([^()]*)\)\)")
_PRODUCT = re.compile(r"\d{1,9}(?:[*+]\d{1,9}){0,8}")
_CONNECTING = ("then", "else", "do", "time", "exec", "nohup")
_EXPORTS = ("export", "declare", "local", "readonly")
_MOST_WORDS = 100_000


@dataclass(frozen=True)
class Word:
    """One word of a command, and its line. ``doubt``: the line that decides whether it is there, empty if none does."""

    text: str
    line: int
    doubt: str = ""


_Words = dict[str, list[Word]]


@dataclass(frozen=True)
class _Piece:
    """Part of a raw word. ``quote``: the quotes around it, or none."""

    text: str
    quote: str = ""


@dataclass
class _Raw:
    """A raw word: with ``name`` an assignment. ``items``: of an array."""

    line: int
    pieces: list[_Piece] = field(default_factory=list)
    name: str = ""
    appends: bool = False
    items: "list[_Raw] | None" = None

    @property
    def plain(self) -> str:
        """The text of a word without quotes and name; empty for others."""
        return self.pieces[0].text if len(self.pieces) == 1 and not (self.name or self.pieces[0].quote) else ""


@dataclass
class Script:
    """What a script says: its commands with variables put in, the variables, and the exported ones."""

    label: str
    commands: list[list[Word]] = field(default_factory=list)
    variables: _Words = field(default_factory=dict)
    exported: dict[str, Word] = field(default_factory=dict)


def read_script(text: str, label: str, variables: _Words | None = None, first_line: int = 1) -> Script:
    """Return the commands of a script in order. BadRequestError for a quote or an array without an end."""
    script = Script(label, variables=dict(variables or {}))
    branches = Branches()
    for command, connector in _commands(text.replace("\r\n", "\n"), label, first_line):
        rest = command
        while rest and (keyword := rest[0].plain) in (*BLOCKS, *BLOCKS.values(), *_CONNECTING, "elif"):
            branches.enter(keyword, rest[0].line)
            after = {"case": rest[3:], "for": [], "while": [], "until": []}
            rest = after.get(keyword, rest[1:])
        if branches.is_case and rest and rest[0].pieces and rest[0].pieces[-1].text.endswith(")"):
            rest = rest[1:]
        if not branches.reads_test and branches.runs is not False:
            _take(script, rest, branches.doubt)
        branches.add(_test_words(script, rest), connector, rest[0].line if rest else 0)
    return script


def _test_words(script: Script, command: list[_Raw]) -> list[str] | None:
    """Return the words of a test; None if a branch decides about one of them, and a name alone for another command."""
    if not command or command[0].plain not in TESTS:
        return ["program"] if command else []
    words = [word for raw in command for word in _expanded(_as_text(raw), raw.line, script.variables, "")]
    return None if any(word.doubt for word in words) else [word.text for word in words]


def _as_text(raw: _Raw) -> list[_Piece]:
    """Return the pieces of a word; of an assignment that is an argument of a command with its name."""
    return [_Piece(f"{raw.name}="), *raw.pieces] if raw.name else raw.pieces


def _take(script: Script, command: list[_Raw], doubt: str) -> None:
    """Keep assignments as variables, and the rest, with variables put in, as a command."""
    words: list[Word] = []
    exports = False
    for raw in command:
        if raw.name and (not words or exports):
            _assign(script, raw, doubt, exports=exports)
        elif not words and raw.plain in _EXPORTS:
            exports = True
        else:
            words += _expanded(_as_text(raw), raw.line, script.variables, doubt)
        if len(words) > _MOST_WORDS:
            raise _too_long(script, raw)
    if exports:
        names = [word.text for word in words if script.variables.get(word.text)]
        script.exported.update((name, script.variables[name][0]) for name in names)
    elif words:
        script.commands.append(words)


def _too_long(script: Script, raw: _Raw) -> BadRequestError:
    return BadRequestError(f"{script.label}:{raw.line}: grows too long", remedy="write the arguments out")


def _without_own_name(raw: _Raw) -> _Raw:
    """Return ``A="$A more"`` as the appending ``A+=" more"``, and any other assignment as it is."""
    first, *rest = raw.pieces or [_Piece("")]
    own = re.match(rf"\$(?:{raw.name}|{{{raw.name}}})(?= )", first.text) if first.quote == '"' else None
    if own is None:
        return raw
    return replace(raw, pieces=[replace(first, text=first.text[own.end() :]), *rest], appends=True)


def _assign(script: Script, raw: _Raw, doubt: str, *, exports: bool) -> None:
    """Keep a variable. ``A="$A more"`` appends, so that the words that were there keep their own doubt."""
    raw = _without_own_name(raw)
    is_array = raw.items is not None
    items = raw.items if raw.items is not None else [raw]
    values = [
        word for item in items for word in _expanded(item.pieces, item.line, script.variables, doubt, splits=is_array)
    ]
    before = script.variables.get(raw.name, []) if raw.appends else []
    if before and values and not is_array and not values[0].text[:1].isspace():
        *before, last = before
        values = [Word(f"{last.text}{values[0].text}", raw.line, last.doubt or values[0].doubt)]
    if sum(len(word.text) for word in (*before, *values)) > _MOST_WORDS * 10:
        raise _too_long(script, raw)
    script.variables[raw.name] = [*before, *values]
    if exports and values:
        script.exported[raw.name] = values[0]


def _expanded(pieces: list[_Piece], line: int, known: _Words, doubt: str, *, splits: bool = True) -> list[Word]:
    """Put variables into a raw word. Outside quotes blanks separate words; ``"${A[@]}"`` gives each item."""
    whole = _whole_variable(pieces, known, splits=splits)
    if whole is not None:
        return [replace(word, doubt=doubt or word.doubt) for word in whole]
    found, doubts = [""], [doubt]
    for piece in pieces:
        text = piece.text if piece.quote == "'" else _put_in(piece.text, known, doubts)
        if piece.quote or not splits or text == piece.text:
            found[-1] += text
        else:
            begun, *more = re.split(r"\s+", text)  # blanks at an end leave an empty word, which the next piece fills
            found[-1] += begun
            found += more
    why = next(filter(None, doubts), "")
    return [Word(text, line, why) for text in found if text or (pieces and pieces[0].quote)]


def _whole_variable(pieces: list[_Piece], known: _Words, *, splits: bool) -> list[Word] | None:
    """Return the words of a raw word that is one variable; None for any other, and for one text in quotes."""
    match = _VARIABLE.fullmatch(pieces[0].text) if len(pieces) == 1 and pieces[0].quote != "'" else None
    name = _own_name(match[1] or match[2]) if match else ""
    if match is None or name not in known:
        return None
    if pieces[0].quote:
        return known[name] if (match[1] or "").endswith("]") else None
    return [replace(word, text=part) for word in known[name] for part in word.text.split()] if splits else None


def _own_name(variable: str) -> str:
    """Return the name of ``A[@]``."""
    return variable.removesuffix("[@]").removesuffix("[*]")


def _put_in(text: str, known: _Words, doubts: list[str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, colon, default = (match[1] or match[2]).partition(":-")
        if (name := _own_name(name)) in known:
            doubts.extend(word.doubt for word in known[name])
            return " ".join(word.text for word in known[name]) or default
        return default if colon and "$" not in default else match[0]

    def product(match: re.Match[str]) -> str:
        named = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: known[m[1]][0].text if known.get(m[1]) else m[0], match[1])
        sum_ = re.sub(r"[\s$]", "", named)
        if not _PRODUCT.fullmatch(sum_):
            return match[0].replace("$", "$ ")
        return str(sum(math.prod(map(int, term.split("*"))) for term in sum_.split("+")))

    return _VARIABLE.sub(value, _SUM.sub(product, text))


def _commands(text: str, label: str, line: int) -> Iterator[tuple[list[_Raw], str]]:
    """Split a script into commands of raw words; yield each with the connector behind it."""
    command: list[_Raw] = []
    word: _Raw | None = None
    array: _Raw | None = None
    words, at = command, 0  # of the command, or of the array in it
    while at < len(text):
        if word is None and array is None and (match := _NAME.match(text, at)):
            word = _Raw(line, name=match[1], appends=bool(match[2]))
            words.append(word)
            if match[3]:
                word.items = words = []
                array, word = word, None
            at = match.end()
            continue
        token = (_ITEM if array else _TOKEN).match(text, at)
        assert token is not None and token.lastgroup is not None  # a token may be any character
        kind, inner = token.lastgroup, token[token.lastgroup]
        if kind == "open":
            raise BadRequestError(f"{label}:{line}: a {inner} without an end", remedy="close the quotes")
        if kind in ("plain", "layout", "escaped", "single", "double"):
            if word is None:
                word = _Raw(line)
                words.append(word)
            _add_piece(word, kind, inner)
        else:
            word = None
        if kind == "close":
            array, words = None, command
        elif kind == "end":
            yield command, inner
            words = command = []
        at, line = token.end(), line + token[0].count("\n")
    if array:
        raise BadRequestError(f"{label}:{array.line}: {array.name}=( has no end", remedy="close it with )")
    yield command, ""


def _add_piece(word: _Raw, kind: str, text: str) -> None:
    text = "" if kind == "escaped" and text == "\n" else text
    if kind in ("single", "double"):
        inner = text if kind == "single" else _ESCAPED.sub(lambda match: match[1] or "", text)
        word.pieces.append(_Piece(inner, "'" if kind == "single" else '"'))
    elif word.pieces and not word.pieces[-1].quote:
        word.pieces[-1] = _Piece(word.pieces[-1].text + text)
    else:
        word.pieces.append(_Piece(text))
