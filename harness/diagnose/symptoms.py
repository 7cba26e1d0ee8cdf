"""Recognises what megatron-core says when it refuses the settings of a job."""

import re
from functools import cache

from harness.diagnose.values import Case, Recognised
from harness.experiment.rules.refusals import Refusal, filled, refusals, without_unknown
from harness.failures.entries import word_of
from harness.units import shortened

_CHECK = "run `mbr-perf check` with the job's settings, which needs no GPU"


def recognised(case: Case) -> tuple[Recognised, ...]:
    """Return every refusal that a message of the job contains, with the values of its groups."""
    return tuple(found for refusal in refusals() if (found := _recognised(refusal, case)) is not None)


def _recognised(refusal: Refusal, case: Case) -> Recognised | None:
    for message in case.messages:
        if word_of(refusal.pattern) in message.text and (match := re.search(refusal.pattern, message.text)):
            values, rule = match.groupdict(), refusal.rule
            return Recognised(
                id=rule or "megatron_core",
                symptom="megatron-core refuses the settings" + (f" (rule {rule})" if rule else ""),
                cause=filled(refusal.message, values),
                confirm=f"run `mbr-perf rules show {rule}`" if rule else _CHECK,
                fix=without_unknown(filled(refusal.fix, values)),
                evidence=f"{message.where}: {shortened(message.text, 160)}",
                is_said=True,
            )
    return None


@cache
def _words() -> tuple[str, ...]:
    return tuple({word_of(refusal.pattern) for refusal in refusals()})


def names_symptom(text: str) -> bool:
    """Return whether a line of a log contains a refusal."""
    words = [word for word in _words() if word in text]
    return bool(words) and any(re.search(each.pattern, text) for each in refusals() if word_of(each.pattern) in words)
