"""Reads the words of a shell script's commands: variables, arrays, quotes and continuations, without running anything.

Some values are known to a running shell only: an unset variable, `$(...)`, a branch whose test the script does not
decide. Such a word keeps its `$`, or its ``doubt`` names the line that decides about it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from harness.errors import BadRequestError
from harness.foreign.shell_branches import BLOCKS, JOINS, TESTS, Branches

_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_VARIABLE = re.compile(r"\$(?:\{([^{}]*)\}|([A-Za-z_][A-Za-z0-9_]*|[@*#?$!0-9]))")
_SUM = re.compile(r"\$\(\((.*?)\)\)")
_PRODUCT = re.compile(r"\d{1,9}(?:[*+]\d{1,9}){0,8}")
_CONNECTING = ("then", "else", "do", "time", "exec", "nohup")
_MOST_WORDS = 100_000


@dataclass(frozen=True)
class Word:
    """One word of a command, and its line. ``doubt``: the line that decides whether it is there, empty if none does."""

    text: str
    line: int
    doubt: str = ""


@dataclass(frozen=True)
class _Piece:
    """Part of a raw word. ``quote``: the quotes around it, or none."""

    text: str
    quote: str


_Raw = list[_Piece]


@dataclass
class Script:
    """What a script says: its commands with variables put in, the variables, and the exported ones."""

    label: str
    commands: list[list[Word]] = field(default_factory=list)
    variables: dict[str, list[Word]] = field(default_factory=dict)
    exported: dict[str, Word] = field(default_factory=dict)


def read_script(text: str, label: str, variables: dict[str, list[Word]] | None = None, first_line: int = 1) -> Script:
    """Return the commands of a script in order. BadRequestError for a quote or an array without an end."""
    script = Script(label, variables=dict(variables or {}))
    branches = Branches()
    for command, connector in _Lexer(text, label, first_line).commands():
        rest = command
        while rest and (keyword := _keyword(rest[0])):
            if keyword == "case":
                branches.enter_case(_subject(script, rest[1:2]), rest[0].line)
                rest = rest[3:]
                break
            branches.enter(keyword, rest[0].line)
            rest = rest[1:] if keyword in (*_CONNECTING, "if", "elif", *BLOCKS.values()) else []
        if (
            rest
            and isinstance(rest[0], _Plain)
            and branches.takes_pattern("".join(each.text for each in rest[0].pieces))
        ):
            rest = rest[1:]
        if not branches.reads_tests and branches.runs is not False:
            _take(script, rest, branches.doubt)
        branches.add(_test_words(script, rest), connector, rest[0].line if rest else 0)
    return script


def _subject(script: Script, parts: "list[_Plain | _Assignment]") -> str | None:
    """Return the text that a `case` compares; None if only the running shell knows it."""
    if not parts or not isinstance(parts[0], _Plain):
        return None
    words = _expanded(parts[0].pieces, parts[0].line, script.variables, "")
    return words[0].text if len(words) == 1 and not words[0].doubt and "$" not in words[0].text else None


def _test_words(script: Script, parts: "list[_Plain | _Assignment]") -> list[str] | None:
    """Return the words of a test; None if a branch decides about one of them, and a name alone for another command."""
    first = parts[0] if parts else None
    if (
        first is None
        or isinstance(first, _Assignment)
        or [piece.text for piece in first.pieces][:1] not in ([t] for t in TESTS)
    ):
        return ["program"] if parts else []
    pieces = [(part.as_text() if isinstance(part, _Assignment) else part.pieces, part.line) for part in parts]
    words = [word for raw, line in pieces for word in _expanded(raw, line, script.variables, "")]
    return None if any(word.doubt for word in words) else [word.text for word in words]


def _keyword(part: "_Plain | _Assignment") -> str:
    if isinstance(part, _Assignment) or len(part.pieces) != 1 or part.pieces[0].quote:
        return ""
    text = part.pieces[0].text
    return text if text in (*BLOCKS, *BLOCKS.values(), *_CONNECTING, "elif") else ""


_EXPORTS = ("export", "declare", "local", "readonly")


def _take(script: Script, parts: "list[_Plain | _Assignment]", doubt: str) -> None:
    """Keep assignments as variables, and the rest, with variables put in, as a command."""
    words: list[Word] = []
    exports = False
    for part in parts:
        if isinstance(part, _Assignment) and (not words or exports):
            _assign(script, part, doubt, exports=exports)
            continue
        pieces = part.as_text() if isinstance(part, _Assignment) else part.pieces
        expanded = _expanded(pieces, part.line, script.variables, doubt)
        if not words and len(expanded) == 1 and expanded[0].text in _EXPORTS:
            exports = True
            continue
        words += expanded
        if len(words) > _MOST_WORDS:
            raise BadRequestError(
                f"{script.label}:{part.line}: more than {_MOST_WORDS} words", remedy="is this the right file?"
            )
    if exports:
        names = [word.text for word in words if script.variables.get(word.text)]
        script.exported.update((name, script.variables[name][0]) for name in names)
    elif words:
        script.commands.append(words)


def _without_own_name(raw: "_Assignment") -> "_Assignment":
    """Return ``A="$A more"`` as the appending ``A+=" more"``, and any other assignment as it is."""
    first, *rest = raw.items[0].pieces if raw.items and not raw.is_array else [_Piece("", "")]
    own = next((name for name in (f"${raw.name} ", f"${{{raw.name}}} ") if first.text.startswith(name)), "")
    if not own or first.quote != '"':
        return raw
    more = _Piece(first.text[len(own) - 1 :], '"')
    return replace(raw, items=[_Plain([more, *rest], raw.items[0].line)], appends=True)


def _assign(script: Script, raw: "_Assignment", doubt: str, *, exports: bool) -> None:
    """Keep a variable. ``A="$A more"`` appends, so that the words that were there keep their own doubt."""
    raw = _without_own_name(raw)
    values = [
        word
        for item in raw.items
        for word in _expanded(item.pieces, item.line, script.variables, doubt, splits=raw.is_array)
    ]
    before = script.variables.get(raw.name, []) if raw.appends else []
    if raw.appends and not raw.is_array and before and values and not values[0].text[:1].isspace():
        values = [Word(f"{before[-1].text}{values[0].text}", raw.line, before[-1].doubt or values[0].doubt)]
        before = before[:-1]
    if sum(len(word.text) for word in (*before, *values)) > _MOST_WORDS * 10:
        raise BadRequestError(f"{script.label}:{raw.line}: {raw.name} grows too long", remedy="write the arguments out")
    script.variables[raw.name] = [*before, *values]
    if exports and values:
        script.exported[raw.name] = values[0]


def _expanded(raw: _Raw, line: int, known: dict[str, list[Word]], doubt: str, *, splits: bool = True) -> list[Word]:
    """Put variables into a raw word. Outside quotes blanks separate words; ``"${A[@]}"`` gives each item."""
    whole = _whole_variable(raw, known, splits=splits)
    if whole is not None:
        return [replace(word, doubt=doubt or word.doubt) for word in whole]
    found, doubts = [""], [doubt]
    has_text = any(piece.quote for piece in raw)
    for piece in raw:
        text = piece.text if piece.quote == "'" else _put_in(piece.text, known, doubts)
        has_text = has_text or bool(text.strip())
        if piece.quote or not splits or text == piece.text:
            found[-1] += text
        else:
            begun, *more = re.split(r"\s+", text)  # blanks at an end leave an empty word, which the next piece fills
            found[-1] += begun
            found += more
    why = next(filter(None, doubts), "")
    return [Word(text, line, why) for text in found if text or (raw and raw[0].quote)] if has_text else []


def _whole_variable(raw: _Raw, known: dict[str, list[Word]], *, splits: bool) -> list[Word] | None:
    """Return the words of a raw word that is one variable, and None for any other."""
    match = _VARIABLE.fullmatch(raw[0].text) if len(raw) == 1 and raw[0].quote != "'" else None
    name = (match[1] or match[2]).removesuffix("[@]").removesuffix("[*]") if match else ""
    if match is None or name not in known:
        return None
    if raw[0].quote:
        return known[name] if (match[1] or "").endswith("]") else None
    return [replace(word, text=part) for word in known[name] for part in word.text.split()] if splits else None


def _put_in(text: str, known: dict[str, list[Word]], doubts: list[str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, colon, default = (match[1] or match[2]).partition(":-")
        name = name.removesuffix("[@]").removesuffix("[*]")
        if name in known:
            doubts.extend(word.doubt for word in known[name])
            return " ".join(word.text for word in known[name]) or default
        return default if colon and "$" not in default else match[0]

    def product(match: re.Match[str]) -> str:
        sum_ = re.sub(r"[\s$]", "", _named(match[1], known))
        if not _PRODUCT.fullmatch(sum_):
            return match[0].replace("$", "$ ")
        return str(sum(_multiplied(term) for term in sum_.split("+")))

    return _VARIABLE.sub(value, _SUM.sub(product, text))


def _named(text: str, known: dict[str, list[Word]]) -> str:
    """Return an arithmetic text with the values of the variables that it names."""
    return re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: known[m[1]][0].text if known.get(m[1]) else m[0], text)


def _multiplied(term: str) -> int:
    product = 1
    for factor in term.split("*"):
        product *= int(factor)
    return product


@dataclass(frozen=True)
class _Plain:
    """A raw word and its line."""

    pieces: _Raw
    line: int


@dataclass(frozen=True)
class _Assignment:
    """``NAME=value``, ``NAME+=value`` or ``NAME=( ... )``."""

    name: str
    line: int
    items: list[_Plain]
    appends: bool
    is_array: bool

    def as_text(self) -> _Raw:
        """Return the raw word of an assignment that is an argument of a command."""
        return [_Piece(f"{self.name}=", ""), *(self.items[0].pieces if self.items else [])]


class _Lexer:
    """Splits a script into commands of raw words."""

    def __init__(self, text: str, label: str, line: int) -> None:
        self.text, self.label, self.at, self.line = text.replace("\r\n", "\n"), label, 0, line

    def commands(self) -> Iterator[tuple[list[_Plain | _Assignment], str]]:
        """Yield every command with the text that ends it."""
        command: list[_Plain | _Assignment] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if self._skipped():
                continue
            if char in "\n;&|":
                end = next((join for join in JOINS if self.text.startswith(join, self.at)), char)
                self._step(len(end))
                yield command, end
                command = []
            else:
                command.append(self._assignment() or self._plain())
        yield command, ""

    def _skipped(self) -> bool:
        """Step over blanks, comments and continued lines."""
        char = self.text[self.at]
        if char == "#" and (self.at == 0 or self.text[self.at - 1] in " \t\n;&|("):
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
            return True
        if char in " \t" or self.text.startswith("\\\n", self.at):
            self._step(2 if char == "\\" else 1)
            return True
        return False

    def _step(self, count: int = 1) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _assignment(self) -> _Assignment | None:
        match = _NAME.match(self.text, self.at)
        if match is None:
            return None
        line = self.line
        self._step(match.end() - self.at)
        if not self.text.startswith("(", self.at):
            value = [] if self.at >= len(self.text) or self.text[self.at] in " \t\n;&|" else [self._plain()]
            return _Assignment(match[1], line, value, bool(match[2]), is_array=False)
        self._step()
        items: list[_Plain] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] == "\n":
                self._step()
            elif not self._skipped():
                items.append(self._plain(in_array=True))
        if self.at >= len(self.text):
            raise BadRequestError(f"{self.label}:{line}: {match[1]}=( has no end", remedy="close it with )")
        self._step()
        return _Assignment(match[1], line, items, bool(match[2]), is_array=True)

    def _plain(self, *, in_array: bool = False) -> _Plain:
        line = self.line
        return _Plain(self._raw(in_array=in_array), line)

    def _raw(self, *, in_array: bool = False) -> _Raw:
        """Read one word, of pieces with and without quotes."""
        pieces: _Raw = []
        plain, depth = "", 0
        while self.at < len(self.text) and (depth or not self._ends_word(plain, in_array=in_array)):
            char = self.text[self.at]
            if char == "(" and (depth or in_array or plain.endswith("$")):
                depth += 1
            elif char == ")":
                depth = max(depth - 1, 0)
            if char in "'\"":
                pieces += [_Piece(plain, ""), self._quoted(char)]
                plain = ""
            else:
                plain += self._unquoted()
        return [piece for piece in (*pieces, _Piece(plain, "")) if piece.text or piece.quote]

    def _ends_word(self, plain: str, *, in_array: bool) -> bool:
        char, after = self.text[self.at], self.text[self.at + 1 : self.at + 2]
        if char == "|" and plain and after not in ("", " ", "\t", "\n", "|", "&"):
            return False  # a layout such as Et|t|L that lost its quotes; pipes have blanks around them
        return char in " \t\n;&|" or (in_array and char == ")")

    def _unquoted(self) -> str:
        """Step over a character, an escaped one, or a variable in braces; return it."""
        start, char = self.at, self.text[self.at]
        if char == "\\" and start + 1 < len(self.text):
            self._step(2)
            return self.text[start + 1].strip("\n")
        if self.text.startswith("${", start):
            end = self.text.find("}", start)
            self._step((end if end >= 0 else len(self.text) - 1) + 1 - start)
        else:
            self._step()
        return self.text[start : self.at]

    def _quoted(self, quote: str) -> _Piece:
        start, line = self.at + 1, self.line
        end = start
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if quote == '"' and self.text[end] == "\\" else 1
        if end >= len(self.text):
            raise BadRequestError(f"{self.label}:{line}: a {quote} without an end", remedy="close the quotes")
        self._step(end + 1 - self.at)
        inner = self.text[start:end]
        return _Piece(
            re.sub(r"\\(\n|[\"$`\\])", lambda m: "" if m[1] == "\n" else m[1], inner) if quote == '"' else inner, quote
        )
