"""A row is enough: a GPU type and a module that only their tables know are planned for, checked and completed."""

import json
import os
import subprocess
import sys

import pytest

WITH_ROWS = """
from dataclasses import replace
from harness.experiment.gpu import GPUS
from harness.experiment.modules import MODULES, RecomputeModule

h100 = GPUS["h100"]
GPUS["r200"] = replace(h100, name="r200", title="R200", name_pattern="R200", memory_bytes=3 * h100.memory_bytes)
MODULES["router"] = RecomputeModule(
    "router", lambda layers: layers.moe or "the model has no router", switches=("mlp.router_recompute",)
)
from harness.app import main
main()
"""


def mbr_perf(*arguments, **environment):
    program = [sys.executable, "-c", WITH_ROWS, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, env=os.environ | environment, check=True)
    return done.stdout


def mixtral(command, *arguments):
    job = ("-mr", "mixtral_8x7b", "-g", "r200", "--point_gpu", "a100", "-c", "bf16")
    return json.loads(mbr_perf(command, *job, *arguments, "--json"))


def test_a_gpu_type_and_a_module_are_planned_for():
    """megatron-core itself has no such module, so its setting gets no forecast."""
    document = mixtral("plan", "--only", "none", "router")
    verdicts = {row["recompute"]: row["verdict"] for row in document["settings"]}
    assert verdicts == {"none": "FITS", "router": None}


def test_a_module_acts_on_the_layers_that_its_row_names():
    effective = mixtral("check", "--recompute_modules", "router,mlp", "--no_megatron")["effective"]
    assert effective["modules"] == {"router": effective["num_layers"]}
    assert set(effective["inert_modules"]) == {"mlp"}


@pytest.mark.parametrize(("line", "offered"), [("run -g r", "r200"), ("run --recompute_modules rou", "router")])
def test_both_are_completed(line, offered):
    words = {
        "COMP_WORDS": f"mbr-perf {line}",
        "COMP_CWORD": str(len(line.split())),
        "_MBR_PERF_COMPLETE": "complete_bash",
    }
    assert mbr_perf(**words) == f"{offered}\n"
