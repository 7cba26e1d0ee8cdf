"""A row is enough: a GPU type and a module that only their tables know are planned for, checked and completed.

A metric that only its table knows is shown and gated.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.judge.derive import derive
from harness.records.goldens import golden_text
from harness.records.metrics import BY_NAME
from harness.records.store import read_run

WITH_ROWS = """
from dataclasses import replace
from harness.experiment.gpu import GPUS
from harness.experiment.modules import MODULES, RecomputeModule

h100 = GPUS["h100"]
GPUS["r200"] = replace(h100, name="r200", title="R200", name_pattern="R200", memory_bytes=3 * h100.memory_bytes)
MODULES["router"] = RecomputeModule(
    "router", lambda layers: layers.moe or "the model has no router", switches=("mlp.router_recompute",)
)
import harness.records.metrics as table

of = ("peak_allocated_bytes",)
table.BY_NAME["spare_bytes"] = table.Metric("spare_bytes", "Spare", "bytes", "lower", "memory", of, lambda peak: 2 * peak)
table.METRICS = tuple(table.BY_NAME.values())
from harness.app import main
main()
"""
REPLAYS = Path(__file__).parents[1] / "data/replay"


def mbr_perf(*arguments, code=0, **environment):
    program = [sys.executable, "-c", WITH_ROWS, *map(str, arguments)]
    done = subprocess.run(program, capture_output=True, text=True, env=os.environ | environment, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def mixtral(command, *arguments):
    job = ("-mr", "mixtral_8x7b", "-g", "r200", "--point_gpu", "a100", "-c", "bf16")
    return json.loads(mbr_perf(command, *job, *arguments, "--json"))


@pytest.mark.slow
def test_a_gpu_type_and_a_module_are_planned_for():
    """megatron-core itself has no such module, so its setting gets no forecast."""
    document = mixtral("plan", "--only", "none", "router")
    verdicts = {row["recompute"]: row["verdict"] for row in document["settings"]}
    assert verdicts == {"none": "FITS", "router": None}


@pytest.mark.slow
def test_a_module_acts_on_the_layers_that_its_row_names():
    effective = mixtral("check", "--recompute_modules", "router,mlp", "--no_megatron")["effective"]
    assert effective["modules"] == {"router": effective["num_layers"]}
    assert set(effective["inert_modules"]) == {"mlp"}


@pytest.mark.parametrize(("line", "offered"), [("run -g r2", "r200"), ("run --recompute_modules rou", "router")])
def test_both_are_completed(line, offered):
    words = {
        "COMP_WORDS": f"mbr-perf {line}",
        "COMP_CWORD": str(len(line.split())),
        "_MBR_PERF_COMPLETE": "complete_bash",
    }
    assert mbr_perf(**words) == f"{offered}\n"


@pytest.mark.slow
def test_a_metric_is_shown_and_gated(tmp_path, make_golden):
    job = ("-mr", REPLAYS / "replayed.yaml", "-g", "cpu", "--launcher", "replay", "--from", REPLAYS / "ok")
    assert "Spare" in mbr_perf("run", *job, "--results_dir", tmp_path)
    [run] = tmp_path.glob("runs/*")
    peak = BY_NAME["peak_allocated_bytes"].read(derive(read_run(run)))
    golden = make_golden(read_run(run), {"peak_allocated_bytes": 2 * peak})
    golden = golden.model_copy(update={"metrics": {"spare_bytes": golden.metrics["peak_allocated_bytes"]}})
    (tmp_path / "golden.json").write_text(golden_text(golden))
    assert verdict_on_spare(run, tmp_path / "golden.json", code=0) == "pass"
    without_memory(run / "record.json")
    assert verdict_on_spare(run, tmp_path / "golden.json", code=6) == "inconclusive"


def verdict_on_spare(run, golden, code):
    findings = json.loads(mbr_perf("compare", run, golden, "--json", code=code))["comparison"]
    return next(finding["verdict"] for finding in findings if finding["metric"] == "spare_bytes")


def without_memory(path):
    """Take the reading of one rank away, but not that of the rank with the peak."""
    record = json.loads(path.read_text())
    min(record["ranks"], key=lambda rank: rank["memory"]["max_allocated_bytes"])["memory"] = None
    path.write_text(json.dumps(record))
