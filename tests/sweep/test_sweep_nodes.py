"""A sweep as a job of Slurm, also on several nodes, which follow node 0."""

from pathlib import Path

import pytest

from harness.batch.nodes import Follower
from harness.errors import RunFailedError
from harness.launch.environment import this_host
from harness.launch.processes import claim, is_held, release
from harness.records.batches import BatchLaunch
from harness.records.job import ClusterRequest, SlurmOptions
from harness.sweep.batch import SweepBatch
from harness.sweep.reports import SweepDisplay
from harness.sweep.run import follow_sweep, sweep_job


def test_a_node_whose_leader_never_comes_gives_up(tmp_path):
    with pytest.raises(RunFailedError, match="node 0 "):
        follow_sweep(Follower(tmp_path, 1, "Slurm", "n1", lambda: False, patience_s=0.3), SweepDisplay())


def test_a_folder_is_held_from_claim_to_release_and_again(tmp_path):
    assert not is_held(tmp_path)
    claim(tmp_path)
    assert is_held(tmp_path)
    release(tmp_path)
    assert not is_held(tmp_path)


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
    answer = mbr_perf(*BY_SLURM, "--no_warm", "--from", "x")
    assert answer.code == 2
    for option in ("--from ", "--time_limit", "--no_warm "):
        assert option in answer.err


def test_the_gpus_of_the_nodes_must_be_named(mbr_perf, tmp_path):
    words = [word for word in BY_SLURM if word not in ("-g", "cpu")]
    answer = mbr_perf(*words, "--time_limit", "5", "--results_dir", tmp_path / "results")
    assert (answer.code, "name the GPU type with --gpu" in answer.err, list(tmp_path.iterdir())) == (2, True, [])
