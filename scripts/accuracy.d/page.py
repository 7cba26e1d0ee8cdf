"""The result of a comparison: figures for programs, a page for people, one headline for the index."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
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
        """Return the whole page."""
        return "\n".join([f"# {self.title}", "", self.headline, "", *self.summary, "", *self.details]).rstrip() + "\n"


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a kept document; none before it is written."""
    return list(json.loads(file.read_text())["rows"]) if file.exists() else []


def data_text(document: dict[str, Any]) -> str:
    """Return a file of the planner's data; what is nested no deeper is one line of a table, where 120 columns hold it."""
    text = json.dumps(document, indent=1)
    for flat in (r"\[[^][{}]*\]", r"\{[^{}]*\}"):
        text = re.sub(flat, lambda found: row if len(row := json.dumps(json.loads(found[0]))) < 110 else found[0], text)
    return text + "\n"


def table(heads: str, rows: Iterable[Iterable[object]]) -> list[str]:
    """Return a Markdown table. ``heads``: names between bars; a colon ends the name of a column of numbers."""
    names = heads.split(" | ")
    marks = "|".join("---:" if name.endswith(":") else "---" for name in names)
    head = " |".join(f" {title}" if (title := name.removesuffix(":")) else "" for name in names)
    return [f"|{head} |", f"|{marks}|", *(f"| {' | '.join(map(str, row))} |" for row in rows)]


def sections(named: Mapping[str, Iterable[str]]) -> list[str]:
    """Return Markdown sections by title."""
    return [line for title, lines in named.items() for line in (f"## {title}", "", *lines, "")]


def signed(share: float) -> str:
    """Return a share as per cent with its sign."""
    return f"{share * 100:+.1f} %"


def gib(*sizes: float) -> list[str]:
    """Return bytes as GiB."""
    return [f"{size / 2**30:.2f}" for size in sizes]


def plain(share: float) -> str:
    """Return a share as per cent without a sign."""
    return f"{share * 100:.1f} %"


def index(folder: Path, names: list[str]) -> str:
    """Return README.md of results/accuracy: the headline of each existing page."""
    lines = ["# How close predictions come", "", "Written by `scripts/accuracy`; nothing here is typed by hand.", ""]
    for name in names:
        file = folder / f"{name}.json"
        if file.exists():
            read = json.loads(file.read_text())
            lines += [
                f"* [{read.get('title', name)}]({name}.md): {read.get('headline', 'written by an older command')}"
            ]
    return "\n".join(lines) + "\n"
