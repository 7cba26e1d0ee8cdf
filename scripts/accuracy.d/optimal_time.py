"""``scripts/accuracy --optimal time``: measures a plan by layer beside the best setting for all layers, under one memory limit.

Both run on this machine's processor, one after the other and again, by `mbr-perf sweep`. Ranks share its cores, so a
step takes what the work of all stages takes.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from cpu_runs import answer
from page import signed, table

from harness.launch.environment import Host
from harness.records.folders import results_dir
from harness.records.store import write_atomically
from harness.units import MIB

FILE = results_dir() / "optimal" / "time.json"
JOB = ("-mr", "llama3_8b", "-g", "cpu", "-pp", "4", "-ng", "4", "--num_layers", "16", "-gb", "8")
LIMIT_GIB = "0.11"  # only full:uniform:1 fits of the settings for all layers
REPEATS = 4
_RUNS = ("--memory_limit", LIMIT_GIB, "--eval_time_start_step", "2", "--max_steps", "5", "--repeats", str(REPEATS))


def measure(host: Host) -> None:
    """Plan, sweep both settings, and write what was found."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.yaml"
        found = answer(host, "plan", *JOB, "--optimal", "--fit_into", LIMIT_GIB, "--plan_file", str(plan))["optimal"]
        uniform, load = found["best_uniform"], os.getloadavg()[1]
        both = ("--over", f"recompute={uniform}; {plan}", "--control", f"recompute={uniform}")
        swept = answer(host, "sweep", *JOB, *both, *_RUNS, "--results_dir", folder)
    document = {
        "job": " ".join(JOB),
        "limit_gib": float(LIMIT_GIB),
        "uniform": uniform,
        "plan": found["recompute"],
        "predicted_peaks_bytes": found["peaks_bytes"],
        "repeats": REPEATS,
        "machine": {"cores": host.num_cores, "load": [round(each, 1) for each in (load, os.getloadavg()[1])]},
        "cells": [_cell(cell) for cell in swept["cells"]],
    }
    write_atomically(FILE, json.dumps(document, indent=1) + "\n")


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    against = cell["vs_control"] or {}
    return {
        "recompute": cell["recompute"],
        "status": cell["status"],
        "step_time_s": cell["metrics"]["step_time_s"],
        "peak_bytes": cell["metrics"]["peak_allocated_bytes"]["value"],
        "predicted_peak_bytes": cell["prediction"]["peak_bytes"],
        "flops_per_step": sum(cell["prediction"][f"{name}_flops_per_step"] for name in ("model", "recompute")),
        "time_change": against.get("time_change"),
        "time_change_interval": against.get("time_change_interval"),
    }


def section() -> list[str]:
    """Return the part of the page about it; nothing before it is measured."""
    if not FILE.exists():
        return []
    found = json.loads(FILE.read_text())
    uniform, by_layer = sorted(found["cells"], key=lambda cell: cell["recompute"] != found["uniform"])
    low, high = by_layer["time_change_interval"] or (0.0, 0.0)
    flops = by_layer["flops_per_step"] / uniform["flops_per_step"] - 1
    rows = (
        (name, f"{cell['step_time_s']['mean']:.2f}", *(f"{cell[key] / MIB:.1f}" for key in ("peak_bytes", "predicted_peak_bytes")))
        for name, cell in ((found["uniform"], uniform), ("the plan by layer", by_layer))
    )  # fmt: skip
    cores, load = found["machine"]["cores"], found["machine"]["load"]
    return [
        "", "## Measured on a processor", "",
        f"`mbr-perf run {found['job']} --memory_limit {found['limit_gib']}`: of the settings for all layers only those "
        f"fit that recompute every layer. The plan by layer has {signed(flops)} FLOPs, and its step takes "
        f"{signed(by_layer['time_change'])} time (95 % interval: {signed(low)} to {signed(high)}; {found['repeats']} runs of "
        f"each, in turn). Ranks share {cores} cores, so a step takes what all stages need together. Other work on the machine "
        f"made a load of {load[0]}, so only the two settings compare.", "",
        *table("setting | step s: | peak MiB: | predicted MiB:", rows), "", f"The plan: `{found['plan']}`.",
    ]  # fmt: skip
