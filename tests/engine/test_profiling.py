"""Chosen steps of chosen ranks are profiled: by torch really, by nsys through a program of that name that notes its call."""

import gzip
import json
import os
import stat
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.engine.profiling import StepProfiler, nsys_command
from harness.experiment.experiment import MeasureSpec
from tests.conftest import build_spec
from tests.engine.conftest import ROOT, run_python, run_worker

NSYS = """#!/bin/sh
printf '%s\\n' "$@" > "$NOTED"
echo "parent=$MBR_PERF_PARENT_PID under=$MBR_PERF_UNDER_NSYS" >> "$NOTED"
shift
for word in "$@"; do case "$word" in --*) shift ;; *) break ;; esac; done
exec "$@"
"""


ENDED = "exit_handlers_ran"


def measured(**changes):
    return MeasureSpec(**{"profiler": "nsys", "profiling_ranks": (1,), **changes})


def worker(folder, rank, path):
    """Start the worker of a GPU job. Without a GPU it fails at torch's first call to CUDA, after nsys has its turn."""
    spec = build_spec(gpu="h100", num_gpus=2, compute_dtype="bf16", measure=measured().model_dump())
    (folder / "sitecustomize.py").write_text(
        f"import atexit, pathlib\natexit.register(pathlib.Path({str(folder / ENDED)!r}).touch)\n"
    )
    noted = folder / "noted"
    environment = {
        "RANK": str(rank), "WORLD_SIZE": "2", "PATH": path, "NOTED": str(noted), "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": f"{folder}:{ROOT}", "MBR_PERF_PARENT_PID": str(os.getpid()),
    }  # fmt: skip
    return run_worker(folder, spec, run_python, **environment), noted


@pytest.fixture
def path_with_nsys(tmp_path):
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(NSYS)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{program.parent}:/usr/bin:/bin"


@pytest.mark.train
@pytest.mark.slow
def test_a_chosen_rank_runs_under_nsys_and_is_its_child_and_another_does_not(tmp_path, path_with_nsys):
    done, noted = worker(tmp_path, 1, path_with_nsys)
    words = noted.read_text().splitlines()
    assert words[:2] == ["profile", f"--output={tmp_path}/ranks/profile_001"]
    assert "--capture-range=cudaProfilerApi" in words
    assert words[-6:-1] == [sys.executable, "-m", "harness.engine.worker", "--run_dir", str(tmp_path)]
    assert words[-1] == "parent= under=1"
    assert done.returncode == 1
    record = json.loads((tmp_path / "ranks" / "rank_001.json").read_text())
    assert (record["rank"], record["failure"]["phase"]) == (1, "import")  # the rank itself ran, until it needed a GPU
    assert (tmp_path / ENDED).exists()  # the library of nsys in the process writes at the end
    other = tmp_path / "other"
    other.mkdir()
    _, noted = worker(other, 0, path_with_nsys)
    assert (other / "ranks" / "rank_000.json").exists()
    assert not noted.exists() and not (other / ENDED).exists()


def test_a_node_without_nsys_ends_the_rank_with_a_sentence(tmp_path):
    done, _ = worker(tmp_path, 1, "/nowhere")
    assert done.returncode == 1
    assert " nsys " in (tmp_path / "logs" / "rank_001.log").read_text()


def test_an_option_of_the_request_replaces_the_one_of_the_same_name():
    command = nsys_command(measured(nsys_options=("--trace=cuda", "--export=sqlite")), Path("/run"), 8)
    assert command[:3] == ("nsys", "profile", "--output=/run/ranks/profile_008")
    assert [word for word in command if word.startswith("--trace")] == ["--trace=cuda"]
    assert "--export=sqlite" in command
    assert "--cuda-graph-trace=node" in command


@pytest.mark.train
@pytest.mark.slow
def test_torch_records_the_steps_of_the_range_and_no_other(tmp_path):
    import torch

    path = tmp_path / "profile_001.json.gz"
    measure = measured(profiler="pytorch", profiling_start_step=2, profiling_stop_step=4)
    profiler = StepProfiler(measure, 1, path)
    for index in range(5):
        profiler.before_step(index)
        with torch.profiler.record_function(f"step {index}"):
            torch.ones(8, 8) @ torch.ones(8, 8)
        assert path.exists() == (index > 3)
        profiler.after_step(index)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [event.get("name") for event in events]
    assert [name for name in names if str(name).startswith("step ")] == ["step 2", "step 3"]
    assert names.count("aten::mm") == 2
    other = StepProfiler(measure, 0, tmp_path / "other.json.gz")  # a rank that is not chosen
    for index in range(12):
        other.before_step(index)
        other.after_step(index)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.train
@pytest.mark.slow
def test_nsys_records_from_the_first_step_to_the_last(monkeypatch, tmp_path):
    import torch

    calls = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(torch.autograd.profiler, "emit_nvtx", nullcontext)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    profiler = StepProfiler(measured(profiling_start_step=1, profiling_stop_step=3), 1, tmp_path / "none")
    for index in range(5):
        profiler.before_step(index)
        calls.append(index)
        profiler.after_step(index)
    assert calls == [0, "start", 1, 2, "synchronize", "stop", 3, 4]
    assert list(tmp_path.iterdir()) == []
