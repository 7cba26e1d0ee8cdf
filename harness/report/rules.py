"""The rule table for people and programs."""

from collections.abc import Iterable
from dataclasses import asdict

from rich.text import Text

from harness.report.console import Console
from harness.report.json import SCHEMA_VERSION, Document
from harness.report.printing import plain_table, print_hanging, show
from harness.spec.rules.rulebook import Entry


def rules_document(entries: Iterable[Entry]) -> Document:
    """``mbr-perf rules --json``."""
    return {"schema_version": SCHEMA_VERSION, "rules": [asdict(entry) for entry in entries]}


def print_rules(console: Console, entries: tuple[Entry, ...]) -> None:
    """One row a rule; ``<name>`` stands for a value of the request."""
    table = plain_table("Rule", "Severity", "megatron-core", "Says")
    for entry in entries:
        table.add_row(entry.id, entry.severity, entry.versions, entry.message)
    show(console, table)
    console.print(f"{len(entries)} rules. `mbr-perf rules show ID` explains one.", highlight=False)


def print_rule(console: Console, entries: tuple[Entry, ...]) -> None:
    """Print all that is known of one rule; an id may have a row per release of megatron-core."""
    for entry in entries:
        rows = (
            ("severity", entry.severity),
            ("fix", entry.fix),
            ("megatron-core", entry.mcore_text or ""),
            ("versions", entry.versions),
            ("evidence", entry.evidence),
            ("source", entry.source),
        )
        for line in (f"{entry.id}: {entry.message}", *(f"  {name}: {value}" for name, value in rows if value)):
            print_hanging(console, Text(line), 4)
