"""A known symptom as a row, and what rows may look at."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.analysis.diagnosis.values import Case, Recognised, Saying


@dataclass(frozen=True)
class Facts:
    """One job, and a second one to hold it against where there are two."""

    case: Case
    reference: Case | None = None

    def said(self, pattern: re.Pattern[str]) -> Saying | None:
        """The first line that says so."""
        return next((saying for saying in self.case.sayings if pattern.search(saying.text)), None)


@dataclass(frozen=True)
class Symptom:
    """One row. ``seen``: what was seen in the settings and figures, empty where nothing was.

    ``text``: how megatron-core or its launcher says it, where it does; a match in a log is enough. ``confirm``: how to
    be sure. ``most``: how that line tells the largest value that is accepted, for the fix.
    """

    id: str
    symptom: str
    cause: str
    confirm: str
    fix: str
    seen: Callable[[Facts], str] = lambda _: ""
    text: re.Pattern[str] | None = None
    most: re.Pattern[str] | None = None

    def recognised(self, facts: Facts) -> Recognised | None:
        """The row with its evidence, or None."""
        said = facts.said(self.text) if self.text else None
        seen = self.seen(facts)
        told = f"{said.where} says: {_short(said.text)}" if said else ""
        evidence = "; ".join(part for part in (told, seen) if part)
        if not evidence:
            return None
        most = self.most.search(said.text) if self.most and said else None
        fix = f"{self.fix}, here {most[1]}" if most else self.fix
        return Recognised(self.id, self.symptom, self.cause, self.confirm, fix, evidence, said is not None)


def _short(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
