"""Compares the facts of two sides."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from harness.experiment.effective import (
    effective_if_cut,
)
from harness.experiment.experiment import FORMER_VALUES, ExperimentSpec
from harness.experiment.recompute import canonical_text, parse_recompute
from harness.explain.values import ABSENT, GROUPS, IMAGE, NONE_SEEN, Contrast, Departure, Group, Key, Side
from harness.judge.plausible import impossible_golden
from harness.predict import flops
from harness.predict.flops import FORMULA_VERSION
from harness.records.golden import GoldenRecord, leaves, spec_like

# Two readings are never exactly equal: relative differences up to these count as equal.
_TOLERANCES = {"sm_clock_min_mhz": 0.01, "sm_clock_max_mhz": 0.01, "max_power_w": 0.05, "spread_of_steps": 0.5}
_STEADY_PERCENT = 2.0  # steps that vary by less are steady, whatever the other side's spread
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# Shown even if the other side did not record it.
_EVIDENCE: frozenset[Key] = frozenset(
    {
        ("clocks", "throttling"),
        ("processes", "foreign_processes"),
        ("memory", "alloc_retries"),
        ("ranks", "slow_rank"),
    }
)


def contrast(ours: Side, theirs: Side) -> Contrast:
    """Sort every fact of either side: a departure, the same, or recorded on one side only."""
    departures: list[Departure] = []
    same: Counter[Group] = Counter()
    missing: tuple[list[Key], list[Key]] = ([], [])
    order = list(GROUPS)
    for key in sorted({*ours.facts, *theirs.facts}, key=lambda key: (order.index(key[0]), key[1])):
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
    """Whether to show a fact of one side. An inert module counts against published figures: it may have acted there."""
    group, name = key
    return key in _EVIDENCE or (group == "recompute" and name.startswith("inert.") and theirs.kind == "published")


def _variables_once(departures: list[Departure]) -> tuple[Departure, ...]:
    """Show a variable once, in the environment, not also as a setting."""
    seen = {each.name for each in departures if each.group == "environment"}
    unique = []
    for each in departures:
        name = each.name.removeprefix("env.")
        if each.group != "settings" or name == each.name:
            unique.append(each)
        elif name not in seen:
            unique.append(replace(each, group="environment", name=name))
    return tuple(unique)


def _value(side: Side, key: Key) -> str | None:
    """Return the recorded text; None if the side recorded neither the fact nor its whole group.

    A fact missing from a whole group is ``none``. A setting older than its field has its former value.
    """
    group, name = key
    if key in side.facts or group not in side.closed:
        return side.facts.get(key)
    return leaves(FORMER_VALUES).get(name, ABSENT) if group == "settings" else ABSENT


def _departure(ours: Side, key: Key, here: str | None, there: str | None) -> Departure:
    group, name = key
    source = ours.sources.get(name, "") if group == "settings" else ""
    return Departure(group, name, here, there, source)


def _alike(key: Key, here: str, there: str) -> bool:
    tolerance = _TOLERANCES.get(key[1])
    ours, theirs = _NUMBER.match(here), _NUMBER.match(there)
    if tolerance is None or ours is None or theirs is None:
        return here == there
    if key[1] == "spread_of_steps" and max(float(ours[0]), float(theirs[0])) < _STEADY_PERCENT:
        return True
    return abs(float(ours[0]) - float(theirs[0])) <= tolerance * max(abs(float(ours[0])), abs(float(theirs[0])))


_BORROWED = "the source does not state all settings; calculations use the run's settings for the missing ones"
_LABELS = ("recipe", "task", "compute_dtype", "num_gpus")


def golden_side(name: str, golden: GoldenRecord, like: ExperimentSpec | None = None) -> Side:
    """Return the golden as a side; ``like`` supplies the settings that a published source does not state.

    A missing step time is calculated from the throughput, unless that uses another formula.
    """
    spec, clock = spec_like(golden, like), golden.measured_on.sm_clock_mhz
    stored = {name: metric.value for name, metric in golden.metrics.items()}
    derived = _step_time(golden, spec)
    closed: set[Group] = {"settings"} if golden.fingerprint else set()
    if golden.measured_on.environment is not None:
        closed.add("environment")
    return Side(
        name=name,
        kind="golden" if golden.kind == "measured" else "published",
        metrics=stored | derived,
        facts=_facts(golden),
        closed=frozenset(closed),
        num_runs=golden.num_runs,
        spreads={n: m.relative_spread for n, m in golden.metrics.items() if m.relative_spread is not None},
        numbers={} if clock is None else {"sm_clock_min_mhz": clock},
        spec=spec,
        effective=effective_if_cut(spec) if spec else None,
        derived=frozenset(derived),
        caveats=(
            *golden.caveats,
            *(f"suspect: {why}" for why in impossible_golden(golden)),
            *(f"promoted in spite of {why}" for why in golden.overridden),
            *([] if golden.fingerprint is not None or spec is None else [_BORROWED]),
        ),
    )


def _step_time(golden: GoldenRecord, spec: ExperimentSpec | None) -> dict[str, float]:
    throughput = golden.metrics.get("tflops_per_gpu")
    formula_is_ours = golden.formula_version in (None, FORMULA_VERSION)
    if spec is None or throughput is None or "step_time_s" in golden.metrics or not formula_is_ours:
        return {}
    return {"step_time_s": flops.model_flops_per_step(spec) / (throughput.value * spec.num_gpus * 1e12)}


def _facts(golden: GoldenRecord) -> dict[Key, str]:
    where, window = golden.measured_on, golden.window
    asked = leaves(golden.spec) | {name: str(getattr(golden, name)) for name in _LABELS}
    asked["recompute"] = canonical_text(parse_recompute(golden.recompute))
    found: dict[Group, Mapping[str, str | None]] = {
        "device": {"gpu": golden.gpu, "device_name": where.device_name},
        "settings": {name: value for name, value in asked.items() if name != "gpu"},
        "environment": where.environment or {},
        "software": {
            **{name: version or ABSENT for name, version in where.versions.items()},
            **({} if where.environment is None else {IMAGE: where.container or ABSENT}),
        },
        "driver": {"driver_version": where.driver_version},
        "window": {
            "max_steps": None if golden.max_steps is None else str(golden.max_steps),
            "window": None if window is None else f"[{window[0]}, {window[1]})",
        },
        "place": {"hosts": ", ".join(where.hostnames) or None},
        "formula": {"formula_version": golden.formula_version},
        **(_health(golden) if golden.kind == "measured" else {}),
    }
    return {
        (group, name): value for group, facts in found.items() for name, value in facts.items() if value is not None
    }


def _health(golden: GoldenRecord) -> dict[Group, dict[str, str | None]]:
    """Return the health of a promoted run: promotion refuses throttled and shared GPUs, if clocks were read."""
    clock = golden.measured_on.sm_clock_mhz
    if clock is None:
        return {}
    return {
        "clocks": {"throttling": NONE_SEEN, "sm_clock_min_mhz": f"{clock:.0f} MHz"},
        "processes": {"foreign_processes": NONE_SEEN},
    }
