"""`--memory_limit` on a processor: runs end as out of memory exactly where the meter says that they need more."""

import json
import subprocess
import sys
import time
from math import isfinite
from pathlib import Path

import pytest

from harness.records.store import read_run

ROOT = Path(__file__).parents[2]
GIB = 1024**3
SMALL = ("-mr", "llama3_8b", "-g", "cpu", "--num_layers", "4", "-sl", "256", "-ms", "4", "--eval_time_start_step", "2")


@pytest.fixture(name="train", scope="module")
def _train(tmp_path_factory):
    """Train under a limit; exit code, answer and record."""

    def run(*arguments):
        results = tmp_path_factory.mktemp("results")
        command = [sys.executable, "-m", "harness.app", "run", *SMALL, "--results_dir", str(results), "--json"]
        done = subprocess.run(
            [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.stdout, done.stderr
        [run_dir] = (results / "runs").iterdir()
        return done.returncode, json.loads(done.stdout), read_run(run_dir)

    return run


@pytest.fixture(name="under_plenty", scope="module")
def _under_plenty(train):
    """A run that needs much less than its limit."""
    return train("--recompute", "layernorm,mlp", "--memory_limit", "4")


@pytest.fixture(name="metered_bytes", scope="module")
def _metered_bytes(under_plenty):
    """The peak of the worst rank as its meter reads it."""
    code, answer, _ = under_plenty
    assert code == 0
    return answer["metrics"]["peak_allocated_bytes"]["value"]


def under(limit_bytes):
    return "--recompute", "layernorm,mlp", "--memory_limit", str(limit_bytes / GIB)


@pytest.mark.train
@pytest.mark.slow
def test_a_run_that_needs_less_passes_and_says_that_a_limit_was_in_force(under_plenty):
    code, _, record = under_plenty
    assert (code, record.status) == (0, "ok")
    assert any("memory limit in force" in note for note in record.notes)
    assert {rank.memory.limit_bytes for rank in record.ranks} == {4 * GIB}


@pytest.mark.train
@pytest.mark.slow
def test_a_run_that_needs_a_little_more_ends_as_out_of_memory(train, metered_bytes):
    began = time.monotonic()
    code, answer, record = train(*under(0.98 * metered_bytes))
    assert time.monotonic() - began < 120  # the other rank waits for a peer that is gone, and must not go on waiting
    assert (code, answer["outcome"], record.status) == (4, "oom", "oom")
    first = next(rank for rank in record.ranks if rank.failure and rank.failure.kind == "oom")
    assert (first.failure.phase, first.failure.step) == ("forward_backward", 1)
    assert first.failure.request_bytes > 0
    assert first.memory.max_allocated_bytes <= first.memory.limit_bytes
    assert first.memory.max_allocated_bytes + first.failure.request_bytes > 0.9 * first.memory.limit_bytes
    assert [rank.rank for rank in record.ranks if not rank.finished] == [0, 1]
    assert "out of memory under --memory_limit" in record.failure


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "1e-12"])
def test_a_limit_that_is_none_is_refused(mbr_perf, limit):
    answer = mbr_perf("run", *SMALL, "--memory_limit", limit, "--dryrun")
    assert answer.code == 2
    wanted = "above 0" if isfinite(float(limit)) else "a finite number"
    assert f"--memory_limit {float(limit):g} must be {wanted}" in answer.err


def test_a_step_cannot_be_both_watched_and_measured(mbr_perf):
    answer = mbr_perf("run", *SMALL[:-1], "1", "--memory_limit", "1", "--dryrun")
    assert answer.code == 2
    assert "CPU17: a memory limit slows steps 0 and 1; the request measures step 1" in answer.err


@pytest.mark.parametrize(
    ("asked", "way"),
    [
        (("-ms", "2"), "--max_steps 10, or --eval_time_start_step 2 with --max_steps 3"),
        (("-ms", "5", "--skip_first_percent_time", "0.1"), "--max_steps 20, or --eval_time_start_step 2"),
        (("-ms", "5", "--skip_first_percent_time", "0"), "--eval_time_start_step 2"),
        (("-ms", "9", "--eval_time_start_step", "1"), "--eval_time_start_step 2"),
    ],
)
def test_the_refusal_names_what_works(mbr_perf, asked, way):
    limited = ("run", "-mr", "llama3_8b", "-g", "cpu", "--memory_limit", "1", "--dryrun")
    answer = mbr_perf(*limited, *asked)
    assert (answer.code, f"measure from step 2 on: {way}\n" in answer.err) == (2, True), answer.err
    for option in way.split(", or "):
        assert mbr_perf(*limited, *asked, *option.replace(" with ", " ").split()).code == 0


@pytest.mark.slow
def test_a_limit_above_what_the_gpu_has_is_refused(mbr_perf):
    answer = mbr_perf("check", "-mr", "llama3_8b", "-g", "h100", "--memory_limit", "96")
    assert answer.code == 2
    assert "RUN06" in answer.out + answer.err


@pytest.mark.parametrize("gpu", ["cpu", "h100"])
def test_a_limit_makes_another_experiment_on_a_gpu_only(make_spec, gpu):
    measure = make_spec(gpu=gpu).measure.model_copy(update={"memory_limit_bytes": GIB})
    assert (make_spec(gpu=gpu, measure=measure).fingerprint == make_spec(gpu=gpu).fingerprint) is (gpu == "cpu")
