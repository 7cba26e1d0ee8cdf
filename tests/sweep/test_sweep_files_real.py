"""The sweep files for the CPU, run as shipped: what they promise is what training shows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.train, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
OUT, PRUNED = "oom", "pruned"


def statuses(tmp_path, name, *smaller):
    """Exit code and status of every cell, the control called so."""
    asked = ("sweep", "--file", name, "--results_dir", str(tmp_path), "--json")
    command = [sys.executable, "-m", "harness.app", *asked]
    with (tmp_path / "answer.json").open("w") as out:
        done = subprocess.run(
            [*command, *smaller], cwd=ROOT, stdout=out, stderr=subprocess.PIPE, timeout=580, check=False
        )
    answer = json.loads((tmp_path / "answer.json").read_text())
    cells = {cell["name"]: cell["status"] for cell in answer["cells"]}
    return done.returncode, {"control" if cell == answer["control"] else cell: cells[cell] for cell in cells}


@pytest.mark.long
def test_a_larger_micro_batch_needs_recompute_under_the_limit(tmp_path):
    code, cells = statuses(tmp_path, "cpu_dense")
    assert code == 0
    assert cells == {
        "control": "ok", "core_attn": "ok", "mlp": "ok", "full:uniform:1": "ok",
        "mb=2": OUT, "core_attn mb=2": OUT, "mlp mb=2": "ok", "full:uniform:1 mb=2": "ok",
        "mb=4": PRUNED, "core_attn mb=4": PRUNED, "mlp mb=4": "ok", "full:uniform:1 mb=4": "ok",
    }  # fmt: skip


@pytest.mark.long
def test_layouts_and_an_environment_variable_are_varied_one_at_a_time(tmp_path):
    code, cells = statuses(tmp_path, "cpu_layouts")
    assert code == 0
    assert cells == dict.fromkeys(("control", "tp=2", "pp=4", "vp=2", "env.MALLOC_ARENA_MAX=1"), "ok")
