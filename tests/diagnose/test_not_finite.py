"""Jobs whose losses or gradients stop being finite, also where no counter counts it and where the log is cut."""

import re

import pytest

LOG = "rank_7.log"
TIME_LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-21T16:00:00 DUE TO TIME LIMIT ***"
DONE = "[after training is done] datetime: 2026-08-21 16:00:00"


def row(number, loss="1.0E+01", norm="1.500", skipped=0, nan=0, total=40):
    """A line of Megatron-LM; a loss of None is left out, as it leaves out a loss that is NaN."""
    written = "" if loss is None else f" lm loss: {loss} |"
    return (
        f" [2026-08-21 14:03:27] iteration {number:8d}/{total:8d} | consumed samples: {number * 64:12d} | elapsed time per iteration "
        f"(ms): 900.0 | global batch size:    64 |{written} loss scale: 1.0 | grad norm: {norm} | number of skipped iterations: "
        f"{skipped:3d} | number of nan iterations: {nan:3d} |"
    )


HEALTHY = [row(number) for number in range(1, 11)]


@pytest.mark.parametrize(
    ("lines", "what", "confidence"),
    [
        ([row(n, norm="nan") for n in range(11, 41)], "norm is nan", "high"),
        ([row(n, None, "nan") for n in range(11, 41)], "norm is nan", "high"),
        ([row(n, None) for n in range(11, 41)], "loss .*missing", "medium"),
        ([row(n, "NAN", "nan") for n in range(11, 41)], "loss is nan", "high"),
        ([row(n, None, "0.0", nan=1) for n in range(11, 41)], "^nan", "high"),
        ([row(n, norm="inf") for n in range(11, 41)], "norm is inf", "high"),
    ],
)
@pytest.mark.parametrize("end", [[DONE], [TIME_LIMIT], [row(41, None, total=99)[:120]], []])
def test_a_job_of_nans_is_found_with_its_first_iteration_rank_and_line(diagnosed, lines, what, confidence, end):
    document = diagnosed(*HEALTHY, *lines, *end)
    verdict = document["verdict"]
    assert (verdict["class"], verdict["confidence"], verdict["rank"], verdict["when"]) == (
        "not_oom", confidence, 7, "in iteration 11",
    )  # fmt: skip
    assert re.search(what, verdict["reason"])
    assert "iteration 11 (rank 7, " in verdict["reason"] and "rank_7.log:11)" in verdict["reason"]
    assert (document["exit_code"], document["job"]["status"]) == (0, "failed")
    assert "-c bf16" in document["fixes"][0]["text"]


@pytest.mark.parametrize(
    "lines",
    [
        [*HEALTHY, DONE],
        # A loss scale is found by skipping; a line cut short has no loss that could be missing.
        [row(1, None, "inf", skipped=1), row(2, None, "nan", skipped=1), *(row(n) for n in range(3, 41)), DONE],
    ],
)
def test_a_healthy_job_has_no_nan(diagnosed, lines):
    document = diagnosed(*lines)
    assert document["job"]["status"] == "ok"
    assert document["verdict"]["rank"] is None


@pytest.mark.parametrize(("value", "found"), [("NAN", True), ("1.234567E+00", False)])
def test_a_validation_loss_that_is_not_finite_is_found(diagnosed, value, found):
    line = f" validation loss at iteration 40 | lm loss value: {value} | lm loss PPL: {value} |"
    document = diagnosed(*(row(n) for n in range(1, 41)), line, DONE)
    assert (document["verdict"]["where"] is not None) is found
    assert document["job"]["status"] == ("failed" if found else "ok")


def test_a_nan_before_an_error_of_its_own_is_a_note(diagnosed):
    error = ["Traceback (most recent call last):", "KeyError: 'tokens'"]
    document = diagnosed(*HEALTHY, row(11, norm="nan"), *error)
    assert "KeyError: 'tokens'" in document["verdict"]["reason"]
    assert " nan at iteration 11 (rank 7, " in document["job"]["notes"][0]


def test_a_log_whose_losses_are_missing_from_the_start_did_not_end_well(diagnosed):
    document = diagnosed(*(row(n, None) for n in range(1, 41)), DONE)
    assert " at iteration 1" in document["verdict"]["reason"]
