"""A sweep over several nodes or as a job of Slurm: each node runs the same command and follows node 0."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.batch.nodes import Follower
from harness.errors import RunFailedError
from harness.launch.environment import this_host
from harness.launch.plan import free_port
from harness.launch.processes import claim, is_held, release
from harness.records.batches import BatchLaunch
from harness.records.job import ClusterRequest, SlurmOptions
from harness.records.sweep import read_sweep
from harness.sweep.batch import SweepBatch
from harness.sweep.reports import SweepDisplay
from harness.sweep.run import follow_sweep, sweep_job

ROOT = Path(__file__).parents[2]
SWEEP = (
    "sweep", "-mr", "llama3_8b", "-g", "cpu", "-gn", "1", "--num_layers", "2", "-sl", "64", "-ms", "5",
    "--set", "model.hidden_size=64", "--set", "model.ffn_hidden_size=128", "--set", "model.vocab_size=256",
    "--over", "recompute=none; mlp", "--nnodes", "2", "--master_addr", "127.0.0.1",
)  # fmt: skip


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_two_nodes_run_every_cell_together(tmp_path):
    folder = tmp_path / "shared"
    command = [sys.executable, "-m", "harness.app", *SWEEP, "--sweep_dir", str(folder), "--master_port",
               str(free_port()), "--json"]  # fmt: skip
    nodes = []
    for rank in (1, 0):
        with (tmp_path / f"node_{rank}.json").open("w") as out:
            nodes.append(
                subprocess.Popen([*command, "--node_rank", str(rank)], cwd=ROOT, stdout=out, stderr=subprocess.DEVNULL)
            )
    try:
        assert [node.wait(timeout=180) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
    answer, nothing = ((tmp_path / f"node_{rank}.json").read_text() for rank in (0, 1))
    assert nothing == ""  # the answer is node 0's
    assert [cell["status"] for cell in json.loads(answer)["cells"]] == ["ok", "ok"]
    runs = [run for cell in read_sweep(folder).cells for run in cell.runs]
    assert len(runs) == 2
    assert all([rank.finished for rank in run.ranks] == [True, True] for run in runs)
    assert not is_held(folder)


@pytest.mark.slow
def test_nodes_need_a_folder_that_they_share(mbr_perf):
    for rank in ("0", "1"):
        answer = mbr_perf(*SWEEP, "--node_rank", rank)
        assert (answer.code, "the same --sweep_dir" in answer.err) == (2, True)


@pytest.mark.slow
def test_a_folder_that_holds_a_sweep_is_not_taken(mbr_perf, tmp_path):
    (tmp_path / "sweep.json").touch()
    answer = mbr_perf(*SWEEP, "--sweep_dir", tmp_path)
    assert (answer.code, "already holds a sweep" in answer.err) == (2, True)


def test_a_node_whose_leader_never_comes_gives_up(tmp_path):
    with pytest.raises(RunFailedError, match="node 0 "):
        follow_sweep(Follower(tmp_path, 1, patience_s=0.3), SweepDisplay())


def test_a_folder_is_held_from_claim_to_release_and_again(tmp_path):
    assert not is_held(tmp_path)
    claim(tmp_path)
    assert is_held(tmp_path)
    release(tmp_path)
    assert not is_held(tmp_path)


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_a_node_of_a_resumed_sweep_takes_no_part_in_what_a_killed_one_left(tmp_path):
    """A claim that was never let go of, and a run that it had begun: the second node waits for node 0's new claim."""
    folder, port = tmp_path / "shared", str(free_port())
    start = [sys.executable, "-m", "harness.app", *SWEEP, "--sweep_dir", str(folder), "--master_port", port]
    with subprocess.Popen(start, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as alone:
        wait_for(folder / "cells" / "000" / "0" / "harness.json")
        alone.kill()
    resume = [sys.executable, "-m", "harness.app", "sweep", "--resume", str(folder)]
    with (
        subprocess.Popen([*resume, "--node_rank", "1"], cwd=ROOT, stderr=subprocess.DEVNULL) as second,
        subprocess.Popen(resume, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first,
    ):
        try:
            assert [first.wait(timeout=180), second.wait(timeout=60)] == [0, 0]
        finally:
            first.kill()
            second.kill()
    assert [run.status for cell in read_sweep(folder).cells for run in cell.runs] == ["ok", "ok"]


def wait_for(path):
    deadline = time.monotonic() + 120
    while not path.is_file():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.1)


BY_SLURM = ("sweep", "-mr", "llama3_8b", "-g", "cpu", "--over", "recompute=none; mlp", "--launcher", "slurm")


def test_one_job_resumes_the_sweep_itself_and_lists_no_runs(make_sweep, make_cell, make_record, make_spec):
    specs = [make_spec(recompute=text) for text in ("none", "core_attn", "mlp")]
    cells = [make_cell(spec.recompute.text, [make_record(spec=spec)]) for spec in specs]
    plan = make_sweep(cells, launch=BatchLaunch(nnodes=4)).plan
    asked = ClusterRequest(options=SlurmOptions(time_limit_minutes=30))
    job = sweep_job(SweepBatch(Path("/r/sweeps/S"), this_host(), plan), asked, Path("/r")).record(Path("/r/jobs/J"))
    assert job.runs == ()
    assert (job.what, job.subject, job.nnodes, job.gpus_per_node) == ("sweep", "/r/sweeps/S", 4, 8)


def test_every_impossible_option_is_reported_at_once(mbr_perf):
    answer = mbr_perf(*BY_SLURM, "--no_warm", "--nnodes", "2")
    assert answer.code == 2
    for option in ("--nnodes ", "--time_limit", "--no_warm "):
        assert option in answer.err


def test_the_gpus_of_the_nodes_must_be_named(mbr_perf, tmp_path):
    words = [word for word in BY_SLURM if word not in ("-g", "cpu")]
    answer = mbr_perf(*words, "--time_limit", "5", "--results_dir", tmp_path / "results")
    assert (answer.code, "name the GPU type with --gpu" in answer.err, list(tmp_path.iterdir())) == (2, True, [])
