"""`mbr-perf sweep` for real: nine settings of a dense and an MoE model, two ranks each, two of them out of memory."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.records.sweep import read_sweep, run_dir_of

pytestmark = [pytest.mark.train, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
STEPS = ("-ms", "5", "--eval_time_start_step", "2")
# The limit lies below what none and core_attn need, but not by more than the prediction may be off.
DENSE = ("-mr", "llama3_8b", "-g", "cpu", "--num_layers", "4", "-sl", "256", *STEPS, "--memory_limit", "0.0563",
         "--over", "recompute=mlp;none;core_attn;full:uniform:1", "--over", "mb=2", "--control", "mlp")  # fmt: skip
MOE = ("-mr", "qwen3_30b_a3b", "-g", "cpu", "-sl", "64", "--num_layers", "2", *STEPS,
       "--over", "recompute=moe;moe,mlp;full:uniform:1")  # fmt: skip
TIMEOUT_S = 400


def command(*arguments):
    return [sys.executable, "-m", "harness.app", "sweep", *map(str, arguments)]


def answered(*arguments):
    done = subprocess.run(
        command(*arguments, "--json"), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def begun(*arguments):
    """A sweep at work, and its folder once the first run is committed."""
    results = Path(arguments[arguments.index("--results_dir") + 1])
    process = subprocess.Popen(
        command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        folders = [path for path in results.glob("sweeps/*") if (run_dir_of(path, 0, 0) / "record.json").is_file()]
        if folders and run_dir_of(folders[0], 1, 0).is_dir():
            return process, folders[0]
        time.sleep(0.05)
    raise AssertionError(process.communicate(timeout=10)[1])


def statuses(answer):
    return {cell["name"]: cell["status"] for cell in answer["cells"]}


@pytest.fixture(name="killed", scope="module")
def _killed(tmp_path_factory):
    """A dense sweep that was killed in its second cell."""
    process, folder = begun(*DENSE, "--results_dir", str(tmp_path_factory.mktemp("results")))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    return folder


def test_a_killed_sweep_is_resumed_to_the_end_two_cells_out_of_memory_for_real(killed):
    assert [cell.fate for cell in read_sweep(killed).cells] == ["run", "not_run", "not_run", "not_run", "pruned"]
    first = (run_dir_of(killed, 0, 0) / "record.json").read_bytes()
    code, answer = answered("--resume", killed)
    assert statuses(answer) == {
        "mlp mb=1": "ok", "none": "oom", "core_attn": "oom", "full:uniform:1": "ok", "mb=2": "pruned",
    }  # fmt: skip
    assert code == 0
    assert (run_dir_of(killed, 0, 0) / "record.json").read_bytes() == first
    assert (killed / "cells" / "001" / "0.incomplete-1").is_dir()
    cells = {cell["name"]: cell for cell in answer["cells"]}
    assert cells["none"]["oom"]["when"]
    assert cells["full:uniform:1"]["vs_control"]["memory_saved_bytes"] > 5_000_000
    assert answer["recommended"] in ("mlp mb=1", "full:uniform:1")
    assert abs(cells["full:uniform:1"]["prediction"]["peak_bytes"] / peak(cells["full:uniform:1"]) - 1) < 0.03
    for path in answer["report"]:
        assert Path(path).stat().st_size > 0


def peak(cell):
    return cell["metrics"]["peak_allocated_bytes"]["value"]


@pytest.mark.long
def test_a_mixture_of_experts_is_swept_and_an_inert_module_is_told(tmp_path):
    code, answer = answered(*MOE, "--results_dir", tmp_path)
    assert code == 0
    assert statuses(answer) == {
        "none": "ok", "moe": "ok", "moe,mlp": "skipped_inert", "full:uniform:1": "ok",
    }  # fmt: skip
    sizes = {cell["name"]: peak(cell) for cell in answer["cells"] if cell["metrics"]}
    assert sizes["full:uniform:1"] < sizes["moe"] < sizes["none"]


def test_a_sweep_at_work_is_nobody_elses_and_ctrl_c_leaves_a_table(tmp_path):
    process, folder = begun(*DENSE, "--repeats", "30", "--results_dir", str(tmp_path))  # outlasts the second command
    try:
        second = subprocess.run(
            command("--resume", folder), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    finally:
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert second.returncode == 2
    assert f"the sweep is still at work: process {process.pid} is at work" in second.stderr
    assert process.returncode == 130
    assert "mlp mb=1 (control)" in out
    assert f"mbr-perf sweep --resume {folder}" in err
    assert 1 <= len(read_sweep(folder).cells[0].runs) < 30
