"""scripts/gpu-check as a person runs it."""

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def gpu_check(*arguments, **env):
    environment = {**os.environ, "MBR_PERF_NO_SETUP": "1", "PYTHON": sys.executable, **env}
    command = [ROOT / "scripts" / "gpu-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3000, check=False)


def cases_of(folder):
    return {case["check"]: case for case in json.loads((folder / "summary.json").read_text())["cases"]}


def test_a_machine_without_gpu_exits_2_and_names_the_rehearsal(tmp_path):
    done = gpu_check("--minutes", "0.1", "--out", tmp_path, LD_LIBRARY_PATH=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    if "checking NVIDIA" in done.stderr:
        pytest.skip("a GPU")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--rehearse" in done.stderr


@pytest.mark.train
def test_a_gpu_that_torch_cannot_use_exits_2_and_nothing_is_started(scripted_gpu, tmp_path):
    done = gpu_check("--out", tmp_path / "out", **scripted_gpu)
    assert (done.returncode, done.stdout) == (2, "")
    # By metadata, by trying, or by what a torch with CUDA counts.
    starts = ("CUDA: torch ", "NVML lists NVIDIA H200, driver 580.1, but torch ", " finds 0 of 1 GPU\n")
    assert any(what in done.stderr for what in starts)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_all_that_is_wrong_with_a_request_is_reported_at_once():
    wrong = "--shapes dense,square --only oom,paint --dtypes fp1 --minutes 0 --recompute full --attention flash --archive a.zip"
    done = gpu_check("--rehearse", *wrong.split())
    assert (done.returncode, done.stdout) == (2, "")
    named = ("--shapes: .*'square'", "--only: .*'paint'", "--dtypes: .*'fp1'", "--attention: .*'flash'",
             "--archive a.zip ", "--minutes 0 ", "--recompute full: ")  # fmt: skip
    assert [name for name in named if not re.search(name, done.stderr)] == []


def test_help_names_every_stage_and_exit_code():
    done = gpu_check("--help")
    assert done.returncode == 0
    for code in ("0  every requested check ran and passed", "2  wrong request", "3  a check failed", "6  some checks"):
        assert f"\n  {code}" in done.stdout
    for stage in ("probe", "oom", "snapshot", "parallel", "planner", "train"):
        assert f"\n  {stage} " in done.stdout


def test_without_time_nothing_is_started_and_every_stage_says_so(tmp_path):
    out, packed = tmp_path / "out", tmp_path / "results.tar.gz"
    asked = ("--only", "oom,train", "--shapes", "moe", "--out", out, "--archive", packed)
    done = gpu_check("--rehearse", "--minutes", "0.01", *asked)
    assert done.returncode == 6, done.stdout + done.stderr
    verdicts = {name: case["verdict"] for name, case in cases_of(out).items()}
    assert {verdicts[name] for name in ("moe.oom", "moe.none", "oom.host_memory")} == {"not_run"}
    assert set(verdicts.values()) == {"not_run", "skipped"}
    assert "repeat the command with --resume" in done.stdout
    assert {"summary.json", "moe.oom.json"} <= names_in(packed)


def names_in(archive):
    with tarfile.open(archive) as packed:
        return {Path(name).name for name in packed.getnames()}


@pytest.mark.slow
@pytest.mark.train
def test_a_sitting_that_is_stopped_packs_what_it_has(tmp_path):
    packed = tmp_path / "results.tar.gz"
    asked = ("--rehearse", "--shapes", "dense", "--out", tmp_path / "out", "--archive", packed)
    command = [sys.executable, ROOT / "scripts" / "gpu-check.d", *asked, "--only", "snapshot,train"]
    environment = {**os.environ, "MBR_PERF_NO_SETUP": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as sitting:
        runs = next(line.rpartition(" ")[2].strip() for line in sitting.stderr if "its runs are in " in line)
        assert any(line.startswith("skipped  dense.snapshot_on_oom") for line in sitting.stderr)
        assert wait_until(lambda: [*Path(runs).glob("*/spec.json")], 60.0)
        sitting.terminate()
        sitting.stderr.read()
    assert sitting.returncode == 130
    assert {"dense.snapshot.json", "spec.json"} <= names_in(packed)


def test_a_later_sitting_adds_to_the_earlier_ones(tmp_path):
    for shape in ("moe", "dense"):
        asked = ("--only", "train", "--recompute", "mlp", "--shapes", shape)
        done = gpu_check("--rehearse", "--minutes", "0.01", *asked, "--out", tmp_path)
        assert done.returncode == 6, done.stdout + done.stderr
    assert set(cases_of(tmp_path)) == {
        f"{shape}.{setting}" for shape in ("moe", "dense") for setting in ("none", "mlp")
    }
    assert ("dense.none" in done.stdout, "moe.none" in done.stdout) == (True, False)


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.long
def test_the_planner_is_right_on_a_processor_and_what_needs_a_gpu_is_never_passed(scripted_gpu, tmp_path):
    """Beside a scripted NVML, which a rehearsal must not mistake for a GPU."""
    asked = ("--rehearse", "--only", "snapshot,planner", "--shapes", "dense", "--dtypes", "bf16", "--recompute", "mlp")
    done = gpu_check(*asked, "--out", tmp_path, **scripted_gpu)
    assert done.returncode == 6, done.stdout + done.stderr
    cases = cases_of(tmp_path)
    flash, unfused = cases.pop("dense.planner.bf16.flash"), cases.pop("dense.planner.bf16.unfused")
    assert (flash["verdict"], unfused["verdict"]) == ("pass", "pass")
    assert set(flash["checks"]) == {"none", "mlp"}
    assert {case["verdict"] for case in cases.values()} == {"skipped"}
    files = [json.loads((tmp_path / f"dense.planner.bf16.{name}.json").read_text()) for name in ("flash", "unfused")]
    groups = [file["facts"]["planner"] for file in files]
    saved = [[row["measured"]["forward"] for row in group["rows"]] for group in groups]
    assert all(mlp < none for none, mlp in saved)
    assert min(saved[1]) > max(saved[0])  # the scores of unfused attention
    assert "| mlp | 0.001 / 0.001 +0.0 % |" in (tmp_path / "planner.md").read_text()


@pytest.mark.long
@pytest.mark.train
def test_the_whole_rehearsal_does_every_stage_or_says_why_not(scripted_gpu, tmp_path):
    asked = "--rehearse --shapes moe --dtypes bf16,fp8_cs --recompute full:uniform:1 --minutes 60"
    done = gpu_check(*asked.split(), "--out", tmp_path, **scripted_gpu)
    assert done.returncode == 6, done.stdout + done.stderr
    cases = cases_of(tmp_path)
    verdicts = {name: case["verdict"] for name, case in cases.items()}
    assert {name for name, verdict in verdicts.items() if verdict == "pass"} == {
        "moe.oom", "moe.after_oom", "oom.host_memory", "moe.planner.bf16.flash", "moe.planner.bf16.unfused",
        "moe.none", "moe.full-uniform-1",
        *(f"parallel.{name}{plain}" for name in ("user_buffers", "distributed_optimizer", "interleaved")
          for plain in ("", ".plain")),
    }  # fmt: skip
    assert set(verdicts.values()) == {"pass", "skipped"}
    full, none = cases["moe.full-uniform-1"], cases["moe.none"]
    assert 0 < full["peak_allocated_bytes"] < none["peak_allocated_bytes"]
    assert cases["moe.oom"]["checks"]["says_where"].startswith("pass: oom of rank 0 in build_model")
    assert "needs a GPU" in none["checks"]["memory_in_order"]
    assert "CPU04" in cases["moe.planner.fp8_cs.flash"]["checks"]["compared"]
    again = gpu_check(*asked.split(), "--resume", "--out", tmp_path, **scripted_gpu)
    assert again.returncode == 6
    assert {name: case["verdict"] for name, case in cases_of(tmp_path).items()} == verdicts
    assert len(list(tmp_path.glob("*.json"))) == len(cases) + 1  # summary.json
