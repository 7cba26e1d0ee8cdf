"""What a case of a suite file, or its defaults, say: read from the tree, laid over each other."""

import math
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import get_args

from harness.recipes.file_reader import FileReader, OptionValue, as_text
from harness.recipes.find import find_recipe_file
from harness.recipes.points import KNOWN_NAMES
from harness.recipes.problems import Problems, nearest
from harness.recipes.recompute import policy_from_text
from harness.recipes.strict_yaml import Items, Node, Scalar, Table, plain
from harness.recipes.suite import THRESHOLD_METRICS, ExpectedFailure, ExpectedOutcome

SETTINGS = ("request", "repeats", "thresholds", "owner", "golden", "timeout")
"""Keys that defaults and cases have in common."""

_EXPECTED = ("outcome", "until", "reason")
_GOLDEN = {"required": True, "optional": False}


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one mapping says; None and empty where it says nothing. ``recompute``: a list, for one case each."""

    options: dict[str, OptionValue] = field(default_factory=dict)
    recompute: tuple[str, ...] = ()
    repeats: int | None = None
    owner: str | None = None
    thresholds: dict[str, float] = field(default_factory=dict)
    is_golden_required: bool | None = None
    timeout_s: float | None = None


class SettingsReader(FileReader):
    """Reads the settings of one suite file; recipes are looked for in ``directory``."""

    def __init__(self, label: str, problems: Problems, directory: Path | None) -> None:
        super().__init__(label, problems)
        self.directory = directory

    def said(self, table: Table, where: str) -> Said:
        """``where`` is the mapping's path in the file; ``defaults`` take no list of recompute settings."""
        prefix = f"{where}."
        options, recompute = self.request(table, f"{prefix}request", may_list=where != "defaults")
        return Said(
            options=options,
            recompute=recompute,
            repeats=self.count(table, "repeats", prefix) if "repeats" in table.entries else None,
            owner=self.text(table, "owner", prefix) if "owner" in table.entries else None,
            thresholds=self.thresholds(table, prefix),
            is_golden_required=self.golden(table, prefix),
            timeout_s=self.timeout(table, prefix),
        )

    def request(self, table: Table, where: str, *, may_list: bool) -> tuple[dict[str, OptionValue], tuple[str, ...]]:
        """Options that are given, and the recompute settings of a list; empty where there is none."""
        node = table.entries.get("request")
        asked = self.table(node, where) if node is not None else None
        if asked is None:
            return {}, ()
        options = self.options(_without(asked, "recompute"), where)
        for key, value in options.items():
            self.require_there(key, value, asked.key_lines[key], where)
        recompute = asked.entries.get("recompute")
        if recompute is None:
            return options, ()
        settings = self.recompute(recompute, asked.key_lines["recompute"], f"{where}.recompute", may_list=may_list)
        if isinstance(recompute, Items):
            return options, settings
        if settings:
            options["recompute"] = settings[0]
        return options, ()

    def require_there(self, key: str, value: OptionValue, line: int, where: str) -> None:
        """Refuse names that there are not, where they are written."""
        place = f"{where}.{key}"
        known = KNOWN_NAMES.get(key)
        if known is not None and value not in known:
            self.refuse(line, f"{place}: no such value {value!r}", nearest(str(value), known))
        if key == "model_recipe_name":
            with self.collecting(line, f"{place}: "):
                find_recipe_file(str(value), self.directory)

    def recompute(self, node: Node, line: int, place: str, *, may_list: bool) -> tuple[str, ...]:
        """The settings that are told right; one may stand without brackets."""
        nodes = node.nodes if isinstance(node, Items) and may_list else (node,)
        texts = [text for item in nodes if (text := as_text(item)) is not None]
        if not texts or len(texts) < len(nodes):
            kind = "text or a list of texts" if may_list else "text (a list belongs to a case)"
            self.refuse(line, f"{place}: must be {kind}, is {plain(node)!r}", "e.g. recompute: [none, core_attn]")
        right: list[str] = []
        for text in texts:
            with self.collecting(line):
                policy_from_text(text, place)
                right.append(text)
        return tuple(right)

    def thresholds(self, table: Table, prefix: str) -> dict[str, float]:
        """Allowed worsening by metric; those that are told right."""
        node = table.entries.get("thresholds")
        rows = self.table(node, f"{prefix}thresholds") if node is not None else None
        if rows is None:
            return {}
        read: dict[str, float] = {}
        for name, value in rows.entries.items():
            place, line, fraction = f"{prefix}thresholds.{name}", rows.key_lines[name], _number(value)
            if name not in THRESHOLD_METRICS:
                self.refuse(line, f"{place}: no metric with a threshold", nearest(name, THRESHOLD_METRICS))
            elif fraction is None or not 0 < fraction < 1:
                says = f"{place}: must be a fraction between 0 and 1, is {plain(value)!r}"
                self.refuse(line, says, "0.05 allows a change of 5 %")
            else:
                read[name] = fraction
        return read

    def golden(self, table: Table, prefix: str) -> bool | None:
        """Whether a golden is required; None where nothing is said."""
        if "golden" not in table.entries:
            return None
        value = plain(table.entries["golden"])
        if isinstance(value, str) and value in _GOLDEN:
            return _GOLDEN[value]
        line = table.key_lines["golden"]
        self.refuse(line, f"{prefix}golden: no such value {value!r}", "write required or optional")
        return None

    def timeout(self, table: Table, prefix: str) -> float | None:
        """Seconds; None where nothing is said."""
        if "timeout" not in table.entries:
            return None
        seconds = _number(table.entries["timeout"])
        if seconds is not None and seconds > 0:
            return seconds
        says = f"{prefix}timeout: must be seconds above 0, is {plain(table.entries['timeout'])!r}"
        self.refuse(table.key_lines["timeout"], says, "e.g. 1800")
        return None

    def expected(self, table: Table, prefix: str) -> ExpectedFailure | None:
        """The failure that a case is known to have; None where it has none, or where it is told wrong."""
        node, place = table.entries.get("expected"), f"{prefix}expected"
        rows = self.table(node, place) if node is not None else None
        if rows is None:
            return None
        self.require_known(rows, _EXPECTED, f"{place}.")
        for key in _EXPECTED:
            if key not in rows.entries or plain(rows.entries[key]) == "":
                self.refuse(rows.key_lines.get(key, rows.line), f"{place}.{key}: missing", f"add {key}")
        outcome, until = self.outcome(rows, place), self.until(rows, place)
        reason = self.text(rows, "reason", f"{place}.")
        if outcome is None or until is None:
            return None
        return ExpectedFailure(outcome=outcome, until=until, reason=reason)

    def outcome(self, rows: Table, place: str) -> ExpectedOutcome | None:
        """One of the bad outcomes; None where it is told wrong."""
        value = self.text(rows, "outcome", f"{place}.")
        known: tuple[ExpectedOutcome, ...] = get_args(ExpectedOutcome)
        for name in known:
            if value == name:
                return name
        if value:
            self.refuse(rows.key_lines["outcome"], f"{place}.outcome: no such value {value!r}", nearest(value, known))
        return None

    def until(self, rows: Table, place: str) -> date | None:
        """The last day; None where it is told wrong."""
        text = self.text(rows, "until", f"{place}.")
        try:
            return date.fromisoformat(text) if text else None
        except ValueError:
            says = f"{place}.until: no date: {text!r}"
            self.refuse(rows.key_lines["until"], says, 'the last day that it counts, e.g. "2027-01-31"')
            return None


def _without(table: Table, key: str) -> Table:
    return Table({name: node for name, node in table.entries.items() if name != key}, table.key_lines, table.line)


def _number(node: Node) -> float | None:
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
