"""Requests with `--memory_limit`; `tests/sweep/test_sweep_real.py` trains under one."""

import re
from math import isfinite

import pytest

GIB = 1024**3
SMALL = ("-mr", "llama3_8b", "-g", "cpu", "--num_layers", "4", "-sl", "256", "-ms", "4", "--eval_time_start_step", "2")


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "1e-12"])
def test_a_limit_that_is_none_is_refused(mbr_perf, limit):
    answer = mbr_perf("run", *SMALL, "--memory_limit", limit, "--dryrun")
    assert answer.code == 2
    wanted = "above 0" if isfinite(float(limit)) else "a finite number"
    assert f"--memory_limit {float(limit):g} must be {wanted}" in answer.err


def test_a_step_cannot_be_both_watched_and_measured(mbr_perf):
    answer = mbr_perf("run", *SMALL[:-1], "1", "--memory_limit", "1", "--dryrun")
    assert answer.code == 2
    assert re.search(r"CPU17: .* 0 and 1; .* step 1\n", answer.err)


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
    assert (answer.code, f": {way}\n" in answer.err) == (2, True), answer.err
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
