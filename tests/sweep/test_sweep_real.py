"""`mbr-perf sweep` for real: nine settings of two models, two of them out of memory, and the shipped files for the CPU."""

import json
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
# The limit is below what three cells need. The predicted ranges show it, so that only --no_prune runs these cells.
DENSE = ("-mr", "llama3_8b", "-g", "cpu", "--num_layers", "4", "-sl", "256", *STEPS, "--memory_limit", "0.0563",
         "--over", "recompute=mlp;none;core_attn;full:uniform:1", "--over", "mb=2", "--control", "mlp", "--no_prune")  # fmt: skip
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


def begun(results, cell, *arguments):
    """A sweep that works on this cell, the one before being committed, and its folder."""
    process = subprocess.Popen(
        command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        for folder in results.glob("sweeps/*"):
            is_committed = (run_dir_of(folder, cell - 1, 0) / "record.json").is_file()
            if is_committed and (run_dir_of(folder, cell, 0) / "spec.json").is_file():
                return process, folder
        time.sleep(0.05)
    raise AssertionError(process.communicate(timeout=10)[1])


def statuses(answer):
    return {cell["name"]: cell["status"] for cell in answer["cells"]}


@pytest.fixture(name="results", scope="module")
def _results(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(name="at_work", scope="module")
def _at_work(results):
    """A dense sweep that was killed in its second cell, and what somebody was told who resumed it before."""
    process, folder = begun(results, 1, *DENSE, "--results_dir", str(results))
    process.send_signal(signal.SIGSTOP)  # so that it is still at work when the other asks
    other = subprocess.run(
        command("--resume", folder), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    process.kill()
    process.communicate(timeout=30)
    return folder, process.pid, other


def test_a_sweep_at_work_is_nobody_elses(at_work):
    _, pid, other = at_work
    assert (other.returncode, other.stdout) == (2, "")
    assert f" process {pid} " in other.stderr


@pytest.fixture(name="killed", scope="module")
def _killed(at_work):
    folder = at_work[0]
    assert [cell.fate for cell in read_sweep(folder).cells] == ["run", "not_run", "not_run", "not_run", "not_run"]
    return folder


@pytest.fixture(name="interrupted", scope="module")
def _interrupted(killed, results):
    """The killed sweep resumed, and interrupted in its third cell: the process, what it printed, the first cell's record."""
    first = (run_dir_of(killed, 0, 0) / "record.json").read_bytes()
    process, _ = begun(results, 2, "--resume", str(killed))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err, first


def test_ctrl_c_is_answered_with_the_command_that_continues(killed, interrupted):
    code, out, _, _ = interrupted
    assert code == 130
    assert "INTERRUPTED (exit 130)" in out
    assert f"mbr-perf sweep --resume {killed}" in out.replace("\n", "")


def test_a_sweep_that_was_killed_and_interrupted_is_resumed_to_the_end_three_cells_out_of_memory_for_real(
    killed, interrupted
):
    code, answer = answered("--resume", killed)
    assert statuses(answer) == {
        "mlp mb=1": "ok", "none": "oom", "core_attn": "oom", "full:uniform:1": "ok", "mb=2": "oom",
    }  # fmt: skip
    assert code == 0
    assert (run_dir_of(killed, 0, 0) / "record.json").read_bytes() == interrupted[-1]
    assert (killed / "cells" / "001" / "0.incomplete-1").is_dir()
    cells = {cell["name"]: cell for cell in answer["cells"]}
    assert cells["none"]["out_of_memory"]["rank"] is not None
    assert cells["full:uniform:1"]["vs_control"]["memory_saved_bytes"] > 5_000_000
    assert answer["recommended"] in ("mlp mb=1", "full:uniform:1")
    assert abs(cells["full:uniform:1"]["prediction"]["peak_bytes"] / peak(cells["full:uniform:1"]) - 1) < 0.03
    for path in answer["report"]:
        assert Path(path).stat().st_size > 0


def test_a_run_ends_as_out_of_memory_exactly_where_its_meter_needs_more_than_the_limit(killed):
    for cell in read_sweep(killed).cells:
        record = cell.runs[0]
        limit = record.spec.measure.memory_limit_bytes
        metered = [
            rank.memory for rank in record.ranks if rank.memory
        ]  # not of a rank that lost its peer and was killed
        assert {memory.limit_bytes for memory in metered} == {limit}
        assert all(memory.max_allocated_bytes <= limit for memory in metered)
        out = [rank for rank in record.ranks if rank.failure and rank.failure.kind == "oom"]
        assert (record.status == "oom") == bool(out)
        for rank in out:
            assert (rank.failure.phase, rank.failure.step) == ("forward_backward", 1)
            assert rank.memory.max_allocated_bytes + rank.failure.request_bytes > limit
            assert not any(other.finished for other in record.ranks)  # the other rank waits for no peer that is gone
            assert "--memory_limit" in record.failure


def peak(cell):
    return cell["metrics"]["peak_allocated_bytes"]["value"]


@pytest.mark.long
def test_a_mixture_of_experts_is_swept_and_an_inert_module_is_reported(tmp_path):
    code, answer = answered(*MOE, "--results_dir", tmp_path)
    assert code == 0
    assert statuses(answer) == {
        "none": "ok", "moe": "ok", "moe,mlp": "skipped_inert", "full:uniform:1": "ok",
    }  # fmt: skip
    sizes = {cell["name"]: peak(cell) for cell in answer["cells"] if cell["metrics"]}
    assert sizes["full:uniform:1"] < sizes["moe"] < sizes["none"]


OUT, PRUNED = "oom", "pruned"


def statuses_of_file(tmp_path, name, *smaller):
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
    code, cells = statuses_of_file(tmp_path, "cpu_dense")
    assert code == 0
    assert cells == {
        "control": "ok", "core_attn": "ok", "mlp": "ok", "full:uniform:1": "ok",
        "mb=2": OUT, "core_attn mb=2": OUT, "mlp mb=2": "ok", "full:uniform:1 mb=2": "ok",
        "mb=4": PRUNED, "core_attn mb=4": PRUNED, "mlp mb=4": "ok", "full:uniform:1 mb=4": "ok",
    }  # fmt: skip


@pytest.mark.long
def test_layouts_and_an_environment_variable_are_varied_one_at_a_time(tmp_path):
    code, cells = statuses_of_file(tmp_path, "cpu_layouts")
    assert code == 0
    assert cells == dict.fromkeys(("control", "tp=2", "pp=4", "vp=2", "env.MALLOC_ARENA_MAX=1"), "ok")
