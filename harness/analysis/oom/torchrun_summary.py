"""The table of failed ranks that torchrun prints at its end, gathered line by line."""

import re
from dataclasses import dataclass

from harness.analysis.oom.failure_signs import Sign, sign_of_exit
from harness.records.logs.lines import LogLine

_FIELD = re.compile(r"(time|host|rank|exitcode)\s*: (\S{1,255})")
_ROOT_CAUSE = "Root Cause (first observed failure)"


@dataclass(frozen=True, slots=True)
class SummaryEntry:
    """One rank of the table. ``line`` is the one with the exit code; ``sign`` its meaning, of weight 2, the root cause 1."""

    sign: Sign
    line: LogLine
    host: str | None
    time: str | None


class TorchrunSummary:
    """Fed with every line; an entry is whole with its exit code."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._weight = 2

    def feed(self, line: LogLine) -> SummaryEntry | None:
        """The entry that ``line`` completes. Other lines in between do no harm, for ranks may still be writing."""
        if line.text.startswith(_ROOT_CAUSE):
            self._weight = 1
            return None
        match = _FIELD.match(line.text)
        if match is None:
            return None
        if match[1] == "time":
            self._fields = {}
        self._fields[match[1]] = match[2]
        if match[1] != "exitcode" or "rank" not in self._fields:
            return None
        return self._entry(line)

    def _entry(self, line: LogLine) -> SummaryEntry | None:
        fields, self._fields = self._fields, {}
        weight, self._weight = self._weight, 2
        try:
            sign = sign_of_exit(int(fields["exitcode"]), int(fields["rank"]), weight)
        except ValueError:
            return None
        time = fields.get("time", "").replace("_", " ") or None
        return SummaryEntry(sign, line, fields.get("host"), time) if sign else None
