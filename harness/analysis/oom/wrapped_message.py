"""A message of torch's allocator that a terminal or a pager broke over several lines, as it comes in pasted text."""

from dataclasses import dataclass

from harness.analysis.oom.allocator_text import allocator_figures
from harness.records.logs.lines import LogLine

_MAX_LINES = 24  # the longest message at 40 columns
_MAX_TEXT = 8000


def is_cut_off(text: str) -> bool:
    """Whether a text that says out of memory lacks the figures at the end of torch's message, which all releases print."""
    if len(text) >= _MAX_TEXT:
        return False
    figures = allocator_figures(text)
    if figures is None:
        return text.rstrip().endswith("CUDA out of memory.") or "OutOfMemoryError" in text
    return figures.reserved_bytes is None and not figures.is_beyond_counting and not figures.is_rejected


@dataclass(slots=True)
class WrappedMessage:
    """A message that began on ``line`` and is not at its end. Lines of other ranks may come in between."""

    line: LogLine
    text: str
    num_lines: int = 1

    def add(self, line: LogLine) -> str | None:
        """The whole text once its end is there; None before."""
        if (line.source, line.rank) != (self.line.source, self.line.rank):
            return None
        self.text, self.num_lines = f"{self.text} {line.text}"[:_MAX_TEXT], self.num_lines + 1
        return None if is_cut_off(self.text) else self.text

    @property
    def is_given_up(self) -> bool:
        """Whether the end will not come any more."""
        return self.num_lines >= _MAX_LINES or len(self.text) >= _MAX_TEXT
