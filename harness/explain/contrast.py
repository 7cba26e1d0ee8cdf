"""Compares the facts of two sides."""

from dataclasses import replace
from typing import get_args

from harness.explain.values import ABSENT, NONE_SEEN, Key, Side
from harness.records.golden import NOT_SET, Difference, Group

_CLOCK = "sm_clock_min_mhz"
_TOLERANCE = 0.01  # two readings of a clock are never exactly equal
# Shown even if the other side did not record it.
_EVIDENCE = ("throttling", "foreign_processes", "alloc_retries")


def contrast(ours: Side, theirs: Side) -> tuple[tuple[Difference, ...], int, int]:
    """Return the facts that differ, how many both sides recorded, and how many only one did."""
    different: list[Difference] = []
    counts, order = [0, 0], get_args(Group)
    for key in sorted({*ours.facts, *theirs.facts}, key=lambda key: (order.index(key[0]), key[1])):
        group, name = key
        if name == "recipe" and "settings" in ours.closed & theirs.closed:
            continue  # a label: both sides have all settings, and an import is named after its file
        here, there = _value(ours, key), _value(theirs, key)
        counts[here is None or there is None] += 1
        if here is not None and there is not None:
            is_different = not _alike(name, here, there)
        else:
            is_different = _is_evidence(key, theirs) and (here or there) != NONE_SEEN
        if is_different:
            source = ours.sources.get(name, "") if group == "settings" else ""
            different.append(Difference(name, there, here, group=group, source=source))
    return _variables_once(different), counts[0], counts[1]


def _is_evidence(key: Key, theirs: Side) -> bool:
    """Whether to show a fact of one side. An inert module counts against published figures: it may have acted there."""
    group, name = key
    return name in _EVIDENCE or (group == "recompute" and name.startswith("inert.") and theirs.kind == "published")


def _variables_once(found: list[Difference]) -> tuple[Difference, ...]:
    seen = {each.name for each in found if each.group == "environment"}
    unique = []
    for each in found:
        name = each.name.removeprefix("env.")
        if each.group != "settings" or name == each.name:
            unique.append(each)
        elif name not in seen:
            unique.append(replace(each, group="environment", name=name))
    return tuple(unique)


def _value(side: Side, key: Key) -> str | None:
    return side.facts.get(key, ABSENT if key[0] in side.closed else None)


def _alike(name: str, *values: str) -> bool:
    if name == _CLOCK:
        low, high = sorted(float(value.split()[0]) for value in values)
        return high - low <= _TOLERANCE * high
    return len({ABSENT if value == NOT_SET else value for value in values}) == 1
