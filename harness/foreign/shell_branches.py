"""Decides which commands of a shell script run: branches of `if`, and commands behind `&&` and `||`.

A test is decided if it compares texts or whole numbers that the script itself sets: ``[[ "$DTYPE" == "fp8" ]]``. A
file, a variable of the shell that starts the script, the exit code of a program, a loop and a `case` are not known.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Holds = bool | None
"""Whether a command runs, or a test is true. None: only the running shell knows."""

BLOCKS: Mapping[str, str] = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done"}
TESTS = ("[", "[[", "test", "!")
"""The words that begin a test."""
_JOINS = ("&&", "||")
_CLOSING = {"[": "]", "[[": "]]"}
_NUMBERS = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip


@dataclass
class _Block:
    """An `if`, a `case` or a loop. ``holds``: whether its current branch runs; ``ran``: whether an earlier one ran."""

    line: int
    keyword: str
    reads_test: bool
    holds: Holds = None
    ran: Holds = False


@dataclass
class Branches:
    """Where a reader is in a script: the blocks around it, and the commands that `&&` and `||` join to the next one.

    ``status``: the outcome of those commands. ``line``: of the last that decides.
    """

    blocks: list[_Block] = field(default_factory=list)
    status: Holds = True
    connector: str = ""
    line: int = 0

    @property
    def reads_test(self) -> bool:
        """Whether the next words belong to the condition of an `if`."""
        return bool(self.blocks) and self.blocks[-1].reads_test

    @property
    def is_case(self) -> bool:
        """Whether the next words may be the pattern of a `case`."""
        return bool(self.blocks) and self.blocks[-1].keyword == "case"

    def enter(self, keyword: str, line: int) -> None:
        """Take a keyword: a block begins, goes on with its next branch, or ends."""
        if keyword in BLOCKS:
            self.blocks.append(_Block(line, keyword, keyword == "if"))
        elif self.blocks and keyword in BLOCKS.values():
            self.blocks.pop()
        elif self.blocks and keyword in ("then", "elif", "else"):
            block = self.blocks[-1]
            if keyword != "then":
                block.ran = _not(_and(_not(block.ran), _not(block.holds)))
            is_met = self.status if block.reads_test else True
            block.holds, block.reads_test = _and(_not(block.ran), is_met), keyword == "elif"
        self.status, self.connector = True, ""

    def add(self, words: Sequence[str] | None, connector: str, line: int) -> None:
        """Take a command and the connector behind it. ``words`` is None if only the running shell knows them.

        A program is taken to succeed if the next command needs that.
        """
        if words == []:
            return
        runs = self._is_joined()
        if runs is not False:
            is_test = words is None or words[0] in TESTS
            outcome = tested(words) if is_test else True if connector == "&&" and not self.reads_test else None
            self.status = outcome if runs else None
            self.line = line if runs else self.line
        self.connector = connector if connector in _JOINS else ""
        if not self.connector and not self.reads_test:
            self.status = True

    def _is_joined(self) -> Holds:
        """Whether the commands before the next one let it run."""
        return {"&&": self.status, "||": _not(self.status)}.get(self.connector, True)

    @property
    def runs(self) -> Holds:
        """Whether the next command runs."""
        runs = self._is_joined()
        for block in self.blocks:
            runs = _and(runs, block.holds)
        return runs

    @property
    def doubt(self) -> str:
        """Which line decides about the next command; empty if the script itself decides."""
        lines = [block.line for block in self.blocks if block.holds is None]
        lines += [self.line] if self._is_joined() is None else []
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
            return value == ""
        case ["-n", value] | [value]:
            return value != ""
        case [left, "=" | "==" | "!=" as sign, right] if not re.search(r"[*?\[]", right):
            return (left == right) is (sign != "!=")
        case [left, sign, right] if sign in _NUMBERS and re.fullmatch(r"-?\d{1,9} -?\d{1,9}", f"{left} {right}"):
            return _NUMBERS[sign](int(left), int(right))
    return None


def _not(value: Holds) -> Holds:
    return None if value is None else not value


def _and(first: Holds, second: Holds) -> Holds:
    if first is False or second is False:
        return False
    return None if first is None or second is None else True
