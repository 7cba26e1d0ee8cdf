"""What a comparison hands over: figures for programs, a page for people, one headline for the index."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Page:
    """``lines`` are markdown without the title; ``summary`` is the part that a terminal shows."""

    title: str
    headline: str
    document: dict[str, Any]
    summary: list[str]
    details: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The whole page."""
        return "\n".join([f"# {self.title}", "", self.headline, "", *self.summary, "", *self.details]).rstrip() + "\n"


def signed(share: float) -> str:
    """Per cent with its sign."""
    return f"{share * 100:+.1f} %"


def plain(share: float) -> str:
    """Per cent of a size."""
    return f"{share * 100:.1f} %"
