"""What a rule has to say about a request."""

from typing import Literal

from harness.spec.frozen import Frozen

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
