"""The known symptoms of failed and slow jobs with recompute, in the order of output, and megatron-core's own errors."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.diagnose import seen
from harness.diagnose.values import Case, Recognised
from harness.experiment.rules.refusals import filled, refusals, without_unknown
from harness.failures.entries import word_of
from harness.records.strict_yaml import table_in
from harness.units import shortened


@dataclass(frozen=True)
class Symptom:
    """A row of symptoms.yaml, which explains the fields. Groups of ``texts`` are values for cause and fix."""

    id: str
    symptom: str
    cause: str
    confirm: str
    fix: str
    texts: Sequence[str] = ()

    def recognised(self, case: Case) -> Recognised | None:
        """Return the row with its evidence, or None."""
        found = ((message, match) for message in case.messages if (match := self.match(message.text)))
        message, match = next(found, (None, None))
        quoted = f"{message.where}: {shortened(message.text, 160)}" if message else ""
        evidence = "; ".join(part for part in (quoted, self._seen(case)) if part)
        if not evidence:
            return None
        values = match.groupdict() if match else {}
        cause, fix = filled(self.cause, values), without_unknown(filled(self.fix, values))
        return Recognised(self.id, self.symptom, cause, self.confirm, fix, evidence, message is not None)

    def _seen(self, case: Case) -> str:
        look: Callable[[Case], str] | None = getattr(seen, self.id, None)
        return look(case) if look else ""

    def match(self, text: str) -> re.Match[str] | None:
        """Match a line of a log with one of the texts."""
        found = (re.search(pattern, text) for pattern in self.texts if word_of(pattern) in text)
        return next((match for match in found if match), None)


_CHECK = "run `mbr-perf check` with the job's settings, which needs no GPU"


def _refused() -> tuple[Symptom, ...]:
    """Return the refusals of megatron-core as symptoms."""
    return tuple(
        Symptom(
            refusal.rule or "megatron_core",
            "megatron-core refuses the settings" + (f" (rule {refusal.rule})" if refusal.rule else ""),
            refusal.message,
            f"run `mbr-perf rules show {refusal.rule}`" if refusal.rule else _CHECK,
            refusal.fix,
            texts=(refusal.pattern,),
        )
        for refusal in refusals()
    )


SYMPTOMS: tuple[Symptom, ...] = (
    *(Symptom(**row) for row in table_in(Path(__file__).with_suffix(".yaml"))),
    *_refused(),
)


def recognised(case: Case) -> tuple[Recognised, ...]:
    """Return every row that applies."""
    return tuple(found for row in SYMPTOMS if (found := row.recognised(case)) is not None)


@cache
def _words() -> tuple[str, ...]:
    return tuple({word_of(pattern) for row in SYMPTOMS for pattern in row.texts})


def names_symptom(text: str) -> bool:
    """Return whether a line of a log matches the text of a row."""
    return any(word in text for word in _words()) and any(row.match(text) for row in SYMPTOMS)
