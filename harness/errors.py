"""Errors a person can act on; each kind carries its exit code."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum


class ExitCode(IntEnum):
    """What a caller may rely on; the table is part of the command-line contract."""

    OK = 0
    BUG = 1
    BAD_REQUEST = 2
    RUN_FAILED = 3
    OUT_OF_MEMORY = 4
    REGRESSION = 5
    INCONCLUSIVE = 6
    IMPROVEMENT = 7
    INTERRUPTED = 130
    TERMINATED = 143


class HarnessError(Exception):
    """A failure with a message for people, what to do about it, and an exit code."""

    exit_code = ExitCode.RUN_FAILED

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message


class BadRequestError(HarnessError):
    """The request is wrong; nothing was started."""

    exit_code = ExitCode.BAD_REQUEST


class ManyProblemsError(BadRequestError):
    """Several problems of one request, reported together."""

    def __init__(self, problems: list[BadRequestError]) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = problems


class RunFailedError(HarnessError):
    """The run itself failed: crash, hang, timeout, lost rank."""


def raise_all(problems: list[BadRequestError]) -> None:
    """Raise nothing, the one problem, or all of them as one error."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise ManyProblemsError(problems)


def nearest(name: str, known: Iterable[str], count: int = 1) -> str:
    """A remedy for an unknown ``name``: at most ``count`` close known ones, else all of them."""
    import difflib  # ranks import this file, and need no suggestions

    known = list(known)
    close = difflib.get_close_matches(name, known, n=count, cutoff=0.6)
    return f"did you mean {' or '.join(repr(match) for match in close)}?" if close else f"known: {', '.join(known)}"


@dataclass
class Problems:
    """Problems found so far. Equal ones count once: a fault in a shared section would otherwise show at every point."""

    found: list[BadRequestError] = field(default_factory=list)

    def add(self, message: str, remedy: str = "") -> None:
        """Note one problem."""
        if all(str(old) != str(BadRequestError(message, remedy=remedy)) for old in self.found):
            self.found.append(BadRequestError(message, remedy=remedy))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep what the block raises as wrong request, and go on."""
        try:
            yield
        except ManyProblemsError as many:
            for problem in many.problems:
                self.add(problem.message, problem.remedy)
        except BadRequestError as problem:
            self.add(problem.message, problem.remedy)

    def raise_if_any(self) -> None:
        """Raise one BadRequestError, or all of them as one ManyProblemsError."""
        raise_all(self.found)
