"""Errors that a user can act on. Each kind carries its exit code."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

Made = TypeVar("Made")


class ExitCode(IntEnum):
    """Exit codes of mbr-perf. They are part of the command-line contract."""

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
    """A failure: a message for the user, a remedy, and an exit code."""

    exit_code = ExitCode.RUN_FAILED

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message


class BadRequestError(HarnessError):
    """The request is wrong. Nothing was started. Each of ``choices`` holds options that make it right."""

    exit_code = ExitCode.BAD_REQUEST

    def __init__(self, message: str, *, remedy: str = "", choices: tuple[tuple[str, ...], ...] = ()) -> None:
        added = [f"add{' one of' * (len(choices) > 1)}:", *map(" ".join, choices)] if choices else []
        super().__init__(message, remedy="\n  ".join(filter(None, (remedy, *added))))
        self.advice, self.choices = remedy, choices

    @property
    def problems(self) -> "list[BadRequestError]":
        return [self]


class SeveralMatchError(BadRequestError):
    """The request fits several things; each of ``choices`` holds the options that choose one of them."""


class NoOldBuildError(BadRequestError):
    """There is no build that differs from tonight's and is known to be good."""


class ManyProblemsError(BadRequestError):
    """One request has several problems. All are reported together."""

    def __init__(self, problems: list[BadRequestError]) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self._problems = problems

    @property
    def problems(self) -> list[BadRequestError]:
        return self._problems


class RunFailedError(HarnessError):
    """The run itself failed: crash, hang, timeout, lost rank."""


def with_cure(problems: list[BadRequestError], cure: tuple[str, ...]) -> list[BadRequestError]:
    """Return the problems, the last one with options that mend all of them, if there are any."""
    mended = [BadRequestError(each.message, remedy=each.remedy, choices=(cure,)) for each in problems[-1:] if cure]
    return [*problems[:-1], *mended] if cure else problems


def raise_all(problems: list[BadRequestError]) -> None:
    """Raise the problems: nothing for none, the problem itself for one, a ManyProblemsError for several."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise ManyProblemsError(problems)


def nearest(name: str, known: Iterable[str], count: int = 1) -> str:
    """Suggest at most ``count`` known names close to the unknown ``name``, or list all of them."""
    known = list(known)
    close = closest(name, known, count)
    return f"did you mean {' or '.join(repr(match) for match in close)}?" if close else f"known: {', '.join(known)}"


def closest(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return at most ``count`` of the ``known`` names that look like ``name``, nearest first; of numbers alone, too."""
    import difflib  # ranks import this file, and need no suggestions
    import re

    close = difflib.get_close_matches(name, known, n=max(count, 10))

    def parts(text: str) -> tuple[str, list[int]]:
        return re.sub(r"\d+", "0", text), [int(each) for each in re.findall(r"\d+", text)]

    words, numbers = parts(name)
    return sorted(close, key=lambda match: (parts(match)[0] != words, parts(match)[1] != numbers))[:count]


@contextmanager
def os_errors_reported(message: str, remedy: str = "") -> Iterator[None]:
    """Turn an error of the operating system inside the block into a BadRequestError: the message, and the reason."""
    try:
        yield
    except OSError as error:
        raise BadRequestError(f"{message}: {error.strerror}", remedy=remedy) from error


@dataclass
class Problems:
    """Problems found so far. Equal problems count once: a fault in a shared section would show at every point."""

    found: list[BadRequestError] = field(default_factory=list)

    def add(self, message: str, remedy: str = "") -> None:
        """Note one problem."""
        if all(str(old) != str(BadRequestError(message, remedy=remedy)) for old in self.found):
            self.found.append(BadRequestError(message, remedy=remedy))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the BadRequestErrors that the block raises, and continue."""
        try:
            yield
        except BadRequestError as error:
            for problem in error.problems:
                self.add(problem.message, problem.remedy)

    def tried(self, make: Callable[[], Made]) -> Made | None:
        """Return what ``make`` returns; None, with its problems collected, if it raises BadRequestError."""
        with self.collecting():
            return make()

    def raise_if_any(self) -> None:
        """Raise the problems found so far, if any."""
        raise_all(self.found)

    def having(self, made: Made | None) -> Made:
        """Return ``made`` if there are no problems; raise them otherwise. There are some where it is None."""
        self.raise_if_any()
        assert made is not None
        return made
