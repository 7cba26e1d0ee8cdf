"""Collecting several problems of one request, each with its place and its nearest known name."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from harness.errors import BadRequestError, ManyProblemsError, raise_all


def nearest(name: str, known: Iterable[str], count: int = 1) -> str:
    """A remedy for an unknown ``name``: at most ``count`` close known ones, else all of them."""
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
