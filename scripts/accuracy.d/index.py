"""README.md of results/accuracy: one line per page, its headline as the page's JSON has it."""

import json
from pathlib import Path


def markdown(folder: Path, names: list[str]) -> str:
    """Pages that are not there yet are left out."""
    lines = ["# How close predictions come", "", "Written by `scripts/accuracy`; nothing here is typed by hand.", ""]
    for name in names:
        file = folder / f"{name}.json"
        if file.exists():
            read = json.loads(file.read_text())
            lines += [
                f"* [{read.get('title', name)}]({name}.md): {read.get('headline', 'written by an older command')}"
            ]
    return "\n".join(lines) + "\n"
