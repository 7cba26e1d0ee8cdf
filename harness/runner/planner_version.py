"""Which planner predicts: a calibration corrects the errors of one, and would add errors to another."""

from functools import cache
from pathlib import Path

import harness
from harness.planning.trace_cache import source_fingerprint
from harness.records.calibration import Calibration
from harness.runner.machine import installed_software

_PARTS = ("planning", "engine/tracing", "engine/stand_in", "spec/gpu.py", "spec/effective.py", "spec/precision.py")


@cache
def planner_fingerprint() -> str:
    """Of the planner's and the tracer's sources, the built-in constants among them."""
    return source_fingerprint(Path(harness.__file__).parent, _PARTS, ())


def traced_with() -> dict[str, str]:
    """Versions of what the tracer runs, those that are installed."""
    found = installed_software()
    return {
        name: version
        for name, version in (("megatron-core", found.megatron_core), ("torch", found.torch))
        if version is not None
    }


def why_of_another_planner(calibration: Calibration) -> str:
    """Why it does not fit the planner that is here; empty where it does."""
    if calibration.planner != planner_fingerprint():
        return "fitted with another version of the planner"
    here = traced_with()
    changed = [
        f"{name} {calibration.traced_with.get(name)}, here {here.get(name)}"
        for name in sorted({*here, *calibration.traced_with})
        if here.get(name) != calibration.traced_with.get(name)
    ]
    return f"fitted with {'; '.join(changed)}" if changed else ""
