"""All that a golden says, as one side of a comparison."""

from collections.abc import Mapping

from harness.analysis.explain.values import ABSENT, IMAGE, NONE_SEEN, Group, Key, Side
from harness.planning import flops
from harness.planning.flops import FORMULA_VERSION
from harness.records.golden import GoldenRecord
from harness.records.golden_settings import leaves, spec_like
from harness.spec.effective import EffectiveRecompute, effective_recompute, settled_implementation
from harness.spec.experiment import ExperimentSpec
from harness.spec.layout import LayoutError
from harness.spec.recompute import canonical_text, parse_recompute

_LABELS = ("recipe", "task", "compute_dtype", "num_gpus")


def golden_side(name: str, golden: GoldenRecord, like: ExperimentSpec | None = None) -> Side:
    """The golden; ``like`` lends a published one the settings that its source does not state.

    A step time that is not stored is worked out from the throughput where the formula is ours or not stated.
    """
    spec = spec_like(golden, like)
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
        numbers=_numbers(golden),
        spec=spec,
        effective=_effective(spec),
        derived=frozenset(derived),
        caveats=(
            *golden.caveats,
            *(f"promoted in spite of {why}" for why in golden.overridden),
            *_borrowed(golden, spec),
        ),
    )


def _borrowed(golden: GoldenRecord, spec: ExperimentSpec | None) -> tuple[str, ...]:
    if golden.fingerprint is not None or spec is None:
        return ()
    return ("for arithmetic, settings that its source does not state are taken to be the run's",)


def _step_time(golden: GoldenRecord, spec: ExperimentSpec | None) -> dict[str, float]:
    throughput = golden.metrics.get("tflops_per_gpu")
    formula_is_ours = golden.formula_version in (None, FORMULA_VERSION)
    if spec is None or throughput is None or "step_time_s" in golden.metrics or not formula_is_ours:
        return {}
    return {"step_time_s": flops.model_flops_per_step(spec) / (throughput.value * spec.num_gpus * 1e12)}


def _effective(spec: ExperimentSpec | None) -> EffectiveRecompute | None:
    if spec is None:
        return None
    try:
        return effective_recompute(spec, settled_implementation(spec))
    except LayoutError:
        return None


def _numbers(golden: GoldenRecord) -> dict[str, float]:
    clock = golden.measured_on.sm_clock_mhz
    return {} if clock is None else {"sm_clock_min_mhz": clock}


def _facts(golden: GoldenRecord) -> dict[Key, str]:
    where = golden.measured_on
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
        "window": _window(golden),
        "place": {"hosts": ", ".join(where.hostnames) or None},
        "formula": {"formula_version": golden.formula_version},
        **(_health(golden) if golden.kind == "measured" else {}),
    }
    return {
        (group, name): value for group, facts in found.items() for name, value in facts.items() if value is not None
    }


def _health(golden: GoldenRecord) -> dict[Group, dict[str, str | None]]:
    """No run that was seen to be throttled or to share its GPU is ever promoted; it was looked at where clocks were read."""
    clock = golden.measured_on.sm_clock_mhz
    if clock is None:
        return {}
    return {
        "clocks": {"throttling": NONE_SEEN, "sm_clock_min_mhz": f"{clock:.0f} MHz"},
        "processes": {"foreign_processes": NONE_SEEN},
    }


def _window(golden: GoldenRecord) -> dict[str, str | None]:
    window = golden.window
    return {
        "max_steps": None if golden.max_steps is None else str(golden.max_steps),
        "window": None if window is None else f"[{window[0]}, {window[1]})",
    }
