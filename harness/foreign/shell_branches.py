"""Decides which commands of a shell script run: branches of `if`, and commands behind `&&` and `||`.

A test is decided if it compares texts or whole numbers that the script itself sets: ``[[ "$DTYPE" == "fp8" ]]``. A
file, a variable of the shell that starts the script, and the exit code of another program are not known; the answer is
then None.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Holds = bool | None
"""Whether a command runs, or a test is true. None: only the running shell knows."""

BLOCKS: Mapping[str, str] = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done"}
JOINS = ("&&", "||")
TESTS = ("[", "[[", "test", "!")
"""The words that begin a test."""
_CLOSING = {"[": "]", "[[": "]]"}
_NUMBERS = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip


@dataclass
class _Block:
    """An `if`, a `case` or a loop. ``ran``: whether an earlier branch ran.

    ``tests``: the condition of an `if`, while it is read; ``subject``: what a `case` compares, None if only the running
    shell knows it.
    """

    line: int
    holds: Holds = None
    ran: Holds = False
    tests: "_Chain | None" = None
    is_case: bool = False
    subject: str | None = None


@dataclass
class _Chain:
    """The commands before this one that `&&` and `||` join to it. ``is_test``: the last that ran was a test.

    ``of_program``: the outcome of a command that is no test.
    """

    of_program: Holds = True
    status: Holds = True
    is_test: bool = False
    connector: str = ""
    line: int = 0

    def runs(self) -> Holds:
        """Return whether the next command of the chain runs; None behind `program ||`."""
        if self.connector == "&&":
            return self.status
        if self.connector == "||":
            return _not(self.status) if self.is_test else None
        return True

    def add(self, words: Sequence[str] | None, connector: str, line: int) -> None:
        """Add a command and the connector behind it. ``words`` is None if only the running shell knows them."""
        if words == []:
            return
        runs = self.runs()
        if runs is not False:
            self.is_test = words is None or words[0] in TESTS
            outcome = tested(words) if self.is_test else self.of_program
            self.status = outcome if runs else None
            self.line = line if runs else self.line
        self.connector = connector if connector in JOINS else ""


@dataclass
class Branches:
    """Where a reader is in a script: the blocks around it, outermost first, and the chain of its command."""

    blocks: list[_Block] = field(default_factory=list)
    chain: _Chain = field(default_factory=_Chain)

    @property
    def reads_tests(self) -> bool:
        """Return whether the next words belong to the condition of an `if`."""
        return bool(self.blocks) and self.blocks[-1].tests is not None

    def enter(self, keyword: str, line: int) -> None:
        """Take a keyword: a block begins, goes on with its next branch, or ends."""
        if keyword in BLOCKS:
            self.blocks.append(_Block(line, tests=_Chain(None) if keyword == "if" else None))
        elif not self.blocks:
            return
        elif keyword in BLOCKS.values():
            self.blocks.pop()
        elif keyword == "then" and (tests := self.blocks[-1].tests) is not None:
            self.blocks[-1].tests = None
            self.blocks[-1].holds = _and(_not(self.blocks[-1].ran), tests.status)
        elif keyword in ("elif", "else"):
            block = self.blocks[-1]
            block.ran = _either(block.ran, block.holds)
            block.holds, block.tests = _not(block.ran), _Chain(None) if keyword == "elif" else None

    def enter_case(self, subject: str | None, line: int) -> None:
        """Take `case SUBJECT in`: a block begins."""
        self.blocks.append(_Block(line, holds=False, is_case=True, subject=subject))

    def takes_pattern(self, text: str) -> bool:
        """Take the pattern of a branch, ``8B|8b)``; return False if the text is no pattern."""
        block = self.blocks[-1] if self.blocks else None
        if block is None or not block.is_case or not text.endswith(")"):
            return False
        block.ran = _either(block.ran, block.holds)
        fits: Holds = False
        for each in text.removesuffix(")").removeprefix("(").split("|"):
            is_known = block.subject is not None and not re.search(r"[*?\[$]", each)
            fits = _either(fits, True if each == "*" else each == block.subject if is_known else None)
        block.holds = _and(_not(block.ran), fits)
        return True

    def add(self, words: Sequence[str] | None, connector: str, line: int) -> None:
        """Take a command and the connector behind it. ``words`` as for the chain."""
        tests = self.blocks[-1].tests if self.blocks else None
        (tests or self.chain).add(words, connector, line)
        if tests is None and words != [] and connector not in JOINS:
            self.chain = _Chain()

    @property
    def runs(self) -> Holds:
        """Return whether the next command runs."""
        runs = self.chain.runs()
        for block in self.blocks:
            runs = _and(runs, block.holds)
        return runs

    @property
    def doubt(self) -> str:
        """Return which line decides about the next command; empty if the script itself decides."""
        lines = [block.line for block in self.blocks if block.holds is None]
        lines += [self.chain.line] if self.chain.runs() is None else []
        return f"line {lines[0]} decides about it" if lines else ""


def tested(words: Sequence[str] | None) -> Holds:
    """Return the outcome of ``[ ... ]`` or ``[[ ... ]]``; None if it is not one test of known values."""
    if not words or any("$" in word or "`" in word for word in words):
        return None
    if words[0] == "!":
        return _not(tested(words[1:]))
    if _CLOSING.get(words[0]) != words[-1]:
        return None
    inner = list(words[1:-1])
    return _not(_compared(inner[1:])) if inner[:1] == ["!"] else _compared(inner)


def _compared(words: Sequence[str]) -> Holds:
    """Return the outcome of one comparison, without its brackets."""
    match words:
        case ["-z", value]:
            found: Holds = value == ""
        case ["-n", value] | [value]:
            found = value != ""
        case [left, "=" | "==" | "!=" as sign, right] if not re.search(r"[*?\[]", right):
            found = (left == right) is (sign != "!=")
        case [left, sign, right] if sign in _NUMBERS and re.fullmatch(r"-?\d{1,9} -?\d{1,9}", f"{left} {right}"):
            found = _NUMBERS[sign](int(left), int(right))
        case _:
            found = None
    return found


def _not(value: Holds) -> Holds:
    return None if value is None else not value


def _either(first: Holds, second: Holds) -> Holds:
    return _not(_and(_not(first), _not(second)))


def _and(first: Holds, second: Holds) -> Holds:
    if first is False or second is False:
        return False
    return None if first is None or second is None else True
