"""What earlier nights say of the noise of a case, and which of them may say it."""

import math
import random

import pytest

from harness.errors import BadRequestError
from harness.history.record import HistoryFigure, HistoryRecord
from harness.nightly.case import noise_of
from harness.nightly.known_noise import KnownNoise, Tail, known_noise
from harness.nightly.noise import noises

GOLDEN = "2026-01-03T00:00:00Z"


def test_two_nights_of_two_runs_worked_by_hand():
    noise = known_noise([[99.0, 101.0], [100.0, 102.0]])
    assert noise is not None
    assert noise.within_sd == pytest.approx(2**0.5 / 100.5)
    assert noise.within_df == 2
    assert noise.night_sd == pytest.approx(0.5**0.5 / 100.5)
    assert (noise.night_df, noise.runs_per_night, noise.level) == (1, 2.0, 100.5)
    assert (noise.num_nights, noise.num_runs) == (2, 4)


def test_one_run_shows_no_noise():
    assert known_noise([]) is None
    assert known_noise([[700.0]]) is None


def test_nights_of_one_run_show_only_nights():
    noise = known_noise([[700.0], [707.0], [693.0]])
    assert noise is not None
    assert (noise.within_sd, noise.within_df) == (0.0, 0)
    assert noise.night_sd == pytest.approx(0.01)


def test_a_step_between_nights_is_no_noise_and_the_level_is_that_after_it():
    draw = random.Random(3)
    nights = [[draw.gauss(level, 7) for _ in range(5)] for level in [721.0] * 10 + [700.0] * 10]
    noise, without = known_noise(nights), known_noise(nights[10:])
    assert noise is not None and without is not None
    assert (noise.num_nights, noise.level) == (10, without.level)
    assert noise.within_sd == pytest.approx(0.01, rel=0.25)
    assert noise.night_sd == pytest.approx(0.01 / 5**0.5, rel=0.5)


def test_nights_before_the_golden_count_for_the_noise_and_not_for_the_level():
    nights = [[99.0, 101.0], [98.0, 102.0], [104.0, 106.0]]
    noise = known_noise(nights, num_before_golden=2)
    assert noise is not None
    assert (noise.within_df, noise.level, noise.num_nights, noise.num_runs) == (3, 105.0, 1, 2)
    alone = known_noise(nights, num_before_golden=3)
    assert alone is not None
    assert (alone.level, alone.num_nights) == (None, 0)


def test_five_nights_show_how_nights_differ():
    nights = [[700.0 + i, 701.0 - i] for i in range(5)]
    known, few = known_noise(nights), known_noise(nights[:4])
    assert known is not None and few is not None
    assert (known.knows_nights, few.knows_nights) == (True, False)


@pytest.fixture(name="kept")
def _kept(make_record):
    """A record of history like those of the runs that are judged, and such a run."""
    run = make_record()

    def build(night: int, value: float, **changes) -> HistoryRecord:
        fields = {
            "run_id": f"night{night}-{value}",
            "case": "h100/x",
            "fingerprint": run.fingerprint,
            "night_id": f"night{night}",
            "started_at": f"2026-01-{night:02d}T03:00:00+00:00",
            "duration_s": 60.0,
            "status": "ok",
            "outcome": "pass",
            "metrics": {"tflops_per_gpu": HistoryFigure(value=value)},
            "formula_version": "model-flops-1",
            "hostname": "node0",
            "device_name": run.provenance.device_name,
            "driver_version": run.provenance.driver_version,
            "versions": run.provenance.versions,
        }
        return HistoryRecord(**fields | changes)

    return run, build


def test_history_becomes_noise_by_night_in_order_of_time(kept):
    run, build = kept
    history = [build(6, 101.0), build(5, 99.0), build(5, 101.0), build(6, 99.0)]
    noise = noise_of(history, "tflops_per_gpu", run, since=GOLDEN)
    assert noise is not None
    assert (noise.num_nights, noise.num_runs, noise.within_df, noise.level) == (2, 4, 2, 100.0)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "failed"}, {"suspect": ("GPU 0 was throttled",)}, {"outcome": "regression"}, {"outcome": None},
        {"night_id": ""}, {"fingerprint": "0" * 16}, {"device_name": "NVIDIA H200"}, {"driver_version": "1"},
        {"versions": {"torch": "3.0.0"}}, {"formula_version": "model-flops-0"}, {"metrics": {}},
        {"started_at": "2026-01-20T03:00:00Z"}, {"voided": {"tflops_per_gpu": "tonight's own A/A differs"}},
    ],
)  # fmt: skip
def test_runs_without_use_for_tonight_are_left_out(kept, change):
    run, build = kept
    history = [build(5, 99.0), build(5, 101.0), build(6, 500.0, **change)]
    noise = noise_of(history, "tflops_per_gpu", run, since=GOLDEN, before="2026-01-15T03:00:00Z")
    assert noise is not None
    assert (noise.num_runs, noise.level) == (2, 100.0)


def test_nights_older_than_the_golden_count_for_noise_only(kept):
    run, build = kept
    history = [build(1, 99.0), build(1, 101.0), build(5, 104.0), build(5, 106.0)]
    noise = noise_of(history, "tflops_per_gpu", run, since=GOLDEN)
    assert noise is not None
    assert (noise.within_df, noise.num_nights, noise.level) == (2, 1, 105.0)


def test_a_golden_without_a_date_is_reported(kept):
    run, build = kept
    with pytest.raises(BadRequestError, match="'yesterday': not an ISO-8601 time"):
        noise_of([build(5, 99.0)], "tflops_per_gpu", run, since="yesterday")


def known(**changes):
    """Five nights of four runs: runs vary by 1 %, with 20 degrees of freedom."""
    fields = {
        "within_sd": 0.01,
        "within_df": 20,
        "night_df": 4,
        "runs_per_night": 4.0,
        "level": 100.0,
        "num_nights": 5,
        "num_runs": 20,
    }
    return KnownNoise(**fields | changes)


def test_nights_that_differ_as_their_runs_explain_count_as_runs():
    """Runs: 0.01**2 with 20 degrees; means: 4 * 0.004**2 with 4; together (20 * 1e-4 + 4 * 6.4e-5) / 24."""
    found = noises(None, None, known(night_sd=0.004))
    assert found.history is not None
    assert (found.history.value, found.history.degrees) == (pytest.approx(9.4e-5), 24)
    assert found.night_variance == 0


def test_nights_that_differ_more_add_the_rest_with_satterthwaites_degrees():
    """4e-4 with 4 degrees less 1e-4 / 4 with 20: 3.75e-4**2 / (4e-4**2 / 4 + 2.5e-5**2 / 20) = 3.5129 degrees."""
    degrees = pytest.approx(1.40625e-7 / (4e-8 + 3.125e-11))
    [(weight, left)] = noises(None, None, known(night_sd=0.02)).nights
    assert (weight, left.value, left.degrees) == (1.0, pytest.approx(3.75e-4), degrees)

    tails = (Tail(3.0, 0.018, 0.4), Tail(math.inf, 0.02, 0.6))
    shapes = noises(None, None, known(night_sd=0.02, tails=tails)).nights
    assert [(weight, shape.value, shape.degrees) for weight, shape in shapes] == [
        (0.4, pytest.approx(0.018**2 * 0.9375), 3.0),
        (0.6, pytest.approx(0.02**2 * 0.9375), degrees),
    ]
