"""Errors a person can act on; each kind carries its exit code."""

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
