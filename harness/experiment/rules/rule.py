"""A rule and a finding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness.experiment.gpu import Frozen
from harness.experiment.rules.situation import Situation
from harness.experiment.software import Version, parse_version

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Finding(Frozen):
    """One violated rule, with the values of the request. ``mcore_text`` is what megatron-core or its launcher would say.

    error: the run would be refused, crash, hang or train something else. warning: it runs, but something asked for has
    no effect or is wasteful. note: worth knowing. ``overridden``: an error that the user forced past.
    """

    id: str
    severity: Severity
    message: str
    fix: str
    mcore_text: str | None = None
    overridden: bool = False

    @property
    def blocks(self) -> bool:
        """Whether nothing may be started."""
        return self.severity == "error" and not self.overridden


Values = dict[str, object]
Predicate = Callable[[Situation], bool | Values | None]

# How a row is known: seen in a run on CPU, read in the source, reported in an issue, or a limit of this harness.
Evidence = Literal["run", "source", "issue", "harness"]


@dataclass(frozen=True)
class Rule:
    """``when`` returns False or None, or True, or the values for the templates; ``{s}`` is always the Situation.

    ``since`` and ``until`` (exclusive) are megatron-core versions. ``mcore_text`` is a template too; None where
    megatron-core has no text or an empty one. ``source`` is a file of megatron-core 0.16.1 unless it says otherwise.
    """

    id: str
    severity: Severity
    when: Predicate
    message: str
    fix: str
    source: str
    evidence: Evidence
    mcore_text: str | None = None
    since: str | None = None
    until: str | None = None

    def holds_in(self, version: Version) -> bool:
        """Whether the row speaks about this megatron-core."""
        if self.since and version < parse_version(self.since):
            return False
        return not self.until or version < parse_version(self.until)

    def judge(self, situation: Situation) -> Finding | None:
        """The finding, or None where the request keeps the rule."""
        if not self.holds_in(situation.mcore):
            return None
        verdict = self.when(situation)
        if verdict is None or verdict is False:
            return None
        values: Values = verdict if isinstance(verdict, dict) else {}
        return Finding(
            id=self.id,
            severity=self.severity,
            message=self.message.format(s=situation, **values),
            fix=self.fix.format(s=situation, **values),
            mcore_text=self.mcore_text.format(s=situation, **values) if self.mcore_text else None,
        )
