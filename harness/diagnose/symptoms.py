"""Recognises what megatron-core says when it refuses the settings of a job."""

import re

from harness.diagnose.values import Case, Recognised
from harness.experiment.rules.refusals import Refusal, filled, refusals, without_unknown
from harness.failures.entries import word_of
from harness.units import shortened

_CHECK = "run `mbr-perf check` with the job's settings, which needs no GPU"


def recognised(case: Case) -> tuple[Recognised, ...]:
    """Return every refusal that the job's failures say, with the values in it."""
    found = (refusal for refusal in refusals() if word_of(refusal.pattern) in case.said)
    return tuple(_row(each, match, case) for each in found if (match := re.search(each.pattern, case.said)))


def _row(refusal: Refusal, match: re.Match[str], case: Case) -> Recognised:
    values, rule = match.groupdict(), refusal.rule
    line = match.string[match.string.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
    return Recognised(
        id=rule or "megatron_core",
        symptom="megatron-core refuses the settings" + (f" (rule {rule})" if rule else ""),
        cause=filled(refusal.message, values),
        confirm=f"run `mbr-perf rules show {rule}`" if rule else _CHECK,
        fix=without_unknown(filled(refusal.fix, values)),
        evidence=f"{case.failed.where if case.failed else case.name}: {shortened(line, 160)}",
        is_said=True,
    )
