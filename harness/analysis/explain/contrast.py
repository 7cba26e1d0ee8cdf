"""Two sides laid side by side: what departs, what agrees, what only one of them recorded."""

import re
from collections import Counter
from dataclasses import replace

from harness.analysis.explain.values import ABSENT, GROUPS, NONE_SEEN, Contrast, Departure, Group, Key, Side
from harness.spec.experiment import FORMER_VALUES

# Readings of which no two are ever equal: relative differences up to this are the same.
_TOLERANCES = {"sm_clock_min_mhz": 0.01, "sm_clock_max_mhz": 0.01, "max_power_w": 0.05, "spread_of_steps": 0.5}
_STEADY_PERCENT = 2.0  # steps that spread by less are steady, whatever the other side's spread by
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# Worth telling even where the other side recorded nothing of the kind.
_EVIDENCE: frozenset[Key] = frozenset({
    ("clocks", "throttling"), ("processes", "foreign_processes"), ("memory", "alloc_retries"), ("ranks", "slow_rank"),
})  # fmt: skip


def contrast(ours: Side, theirs: Side) -> Contrast:
    """Every fact of either side, once: as a departure, as the same, or as recorded on one side only."""
    departures: list[Departure] = []
    same: Counter[Group] = Counter()
    missing: tuple[list[Key], list[Key]] = ([], [])
    for key in _keys(ours, theirs):
        here, there = _value(ours, key), _value(theirs, key)
        if here is not None and there is not None:
            if _alike(key, here, there):
                same[key[0]] += 1
            else:
                departures.append(_departure(ours, key, here, there))
            continue
        if _is_evidence(key, theirs) and (here or there) != NONE_SEEN:
            departures.append(_departure(ours, key, here, there))
        missing[0 if here is None else 1].append(key)
    recorded = {group for group, _ in (*ours.facts, *theirs.facts)} | ours.closed | theirs.closed
    neither = tuple(group for group in GROUPS if group not in recorded)
    return Contrast(_variables_once(departures), dict(same), tuple(missing[0]), tuple(missing[1]), neither)


def _is_evidence(key: Key, theirs: Side) -> bool:
    """A module that is inert here may have acted where the published figure was measured; our goldens would agree."""
    group, name = key
    return key in _EVIDENCE or (group == "recompute" and name.startswith("inert.") and theirs.kind == "published")


def _variables_once(departures: list[Departure]) -> tuple[Departure, ...]:
    """A variable that was asked for is told as one of the environment, and only there where both sides recorded that."""
    seen = {each.name for each in departures if each.group == "environment"}
    told = []
    for each in departures:
        name = each.name.removeprefix("env.")
        if each.group != "settings" or name == each.name:
            told.append(each)
        elif name not in seen:
            told.append(replace(each, group="environment", name=name))
    return tuple(told)


def _keys(ours: Side, theirs: Side) -> list[Key]:
    """Groups in the order of the table of groups, names by alphabet."""
    order = list(GROUPS)
    return sorted({*ours.facts, *theirs.facts}, key=lambda key: (order.index(key[0]), key[1]))


def _value(side: Side, key: Key) -> str | None:
    """Return the recorded text; None where the side did not record the group whole.

    What such a group lacks is ``none``. A setting from before the field was there has its former value.
    """
    group, name = key
    if key in side.facts or group not in side.closed:
        return side.facts.get(key)
    return str(FORMER_VALUES[name]) if group == "settings" and name in FORMER_VALUES else ABSENT


def _departure(ours: Side, key: Key, here: str | None, there: str | None) -> Departure:
    group, name = key
    source = ours.sources.get(name, "") if group == "settings" else ""
    return Departure(group, name, here, there, source)


def _alike(key: Key, here: str, there: str) -> bool:
    tolerance = _TOLERANCES.get(key[1])
    one, other = _NUMBER.match(here), _NUMBER.match(there)
    if tolerance is None or one is None or other is None:
        return here == there
    if key[1] == "spread_of_steps" and max(float(one[0]), float(other[0])) < _STEADY_PERCENT:
        return True
    return abs(float(one[0]) - float(other[0])) <= tolerance * max(abs(float(one[0])), abs(float(other[0])))
