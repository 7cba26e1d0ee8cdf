"""A sweep as a job of Slurm: what it runs on its nodes, how an array divides it, and requests that cannot be."""

from pathlib import Path

import pytest

from harness.batch.plan import DueRun
from harness.launch.environment import this_host
from harness.records.batches import BatchLaunch
from harness.records.job import SlurmOptions, SlurmRequest
from harness.sweep.batch import SweepBatch
from harness.sweep.run import sweep_job

SWEEP = ("sweep", "-mr", "llama3_8b", "-g", "cpu", "--over", "recompute=none; mlp", "--launcher", "slurm")


@pytest.fixture
def make_job(make_sweep, make_cell, make_record, make_spec):
    """The job of a sweep of three cells over four nodes; ``due``: cell and repeat."""

    def make(due, *, is_array, **changes):
        specs = [make_spec(recompute=text) for text in ("none", "core_attn", "mlp")]
        cells = [make_cell(spec.recompute.text, [make_record(spec=spec)]) for spec in specs]
        plan = make_sweep(cells, launch=BatchLaunch(nnodes=4), **changes).plan
        asked = SlurmRequest(options=SlurmOptions(time_limit_minutes=30), array=is_array)
        batch = SweepBatch(Path("/r/sweeps/S"), this_host(), plan)
        runs = tuple(DueRun(plan.cells[index], repeat) for index, repeat in due)
        return sweep_job(batch, runs, asked, Path("/r")).record(Path("/r/jobs/J"))

    return make


def test_one_job_resumes_the_sweep_itself_and_lists_no_runs(make_job):
    job = make_job(((0, 0), (1, 0)), is_array=False)
    assert (job.sweep_dir, job.runs, job.num_tasks) == ("/r/sweeps/S", (), 1)
    assert (job.what, job.subject, job.nnodes, job.gpus_per_node) == ("sweep", "/r/sweeps/S", 4, 8)


def test_a_task_of_an_array_takes_a_cell_with_its_repeats_in_order(make_job):
    job = make_job(((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)), is_array=True)
    assert (job.sweep_dir, job.num_tasks) == (None, 3)
    assert [(run.task, Path(run.run_dir).relative_to("/r/sweeps/S/cells")) for run in job.runs] == [
        (task, Path(f"00{task}", str(repeat))) for task in range(3) for repeat in range(2)
    ]
    assert job.runs[3].run_id == "20260102T030405Z-llama3-0a1b2c3d.001.1"
    assert [run.spec.recompute.text for run in job.runs[::2]] == ["none", "core_attn", "mlp"]


def test_what_is_missing_of_a_sweep_makes_tasks_without_gaps(make_job):
    job = make_job(((2, 1), (0, 1), (2, 0)), is_array=True)
    assert job.num_tasks == 2
    assert [(run.task, Path(run.run_dir).parts[-2:]) for run in job.runs] == [
        (1, ("000", "1")),
        (0, ("002", "0")),
        (0, ("002", "1")),
    ]


def test_every_impossible_option_is_reported_at_once(mbr_perf):
    answer = mbr_perf(*SWEEP, "--array", "--no_warm", "--max_minutes", "5", "--nnodes", "2")
    assert answer.code == 2
    for message in (
        "--nnodes cannot be combined",
        "needs a time limit",
        "--no_warm cannot be used",
        "--max_minutes cannot be used with an",
    ):
        assert message in answer.err


def test_the_gpus_of_the_nodes_must_be_named(mbr_perf, tmp_path):
    words = [word for word in SWEEP if word not in ("-g", "cpu")]
    answer = mbr_perf(*words, "--time_limit", "5", "--results_dir", tmp_path / "results")
    assert (answer.code, "name the GPU type with --gpu" in answer.err, list(tmp_path.iterdir())) == (2, True, [])


def test_an_array_without_slurm_is_refused(mbr_perf):
    answer = mbr_perf(*SWEEP[:-2], "--array")
    assert (answer.code, "--array: only with --launcher slurm" in answer.err) == (2, True)
