"""What earlier nights say of the noise of a case, and which of them may say it."""

import math

import pytest

from harness.errors import BadRequestError
from harness.history.record import HistoryFigure, HistoryRecord
from harness.nightly.case import nights_of, noise_in
from harness.nightly.evidence import Reference, evidence_of, noises
from harness.nightly.known_noise import KnownNoise, Tail, known_noise

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


def test_nights_before_the_golden_count_for_the_noise_and_not_for_the_level():
    nights = [[99.0, 101.0], [98.0, 102.0], [104.0, 106.0]]
    noise = known_noise(nights, num_before_golden=2)
    assert noise is not None
    assert (noise.within_df, noise.level, noise.num_nights, noise.num_runs) == (3, 105.0, 1, 2)
    alone = known_noise(nights, num_before_golden=3)
    assert alone is not None
    assert (alone.level, alone.num_nights) == (None, 0)


SHIFTS = (0.5, -1.1, 0.8, -0.2, 1.4, -0.9, 0.1, -0.6, 0.7, -1.3, 0.3, 1.0)
FIGURES = (
    "within_sd", "within_df", "night_sd", "night_df", "runs_per_night", "level", "num_nights", "num_runs", "drift",
    "golden_level", "recent", "pair_sd",
)  # fmt: skip
TONIGHT = (
    ([660, 672, 665], Reference(700, 0.006, 5)),
    ([680], Reference(700, None, 1)),
    ([600, 720, 640], Reference(700, 0.003, 3)),
    ([715, 720, 716, 718, 722], Reference(701, 0.002, 4)),
)


def nights(shifts, runs=(0,)):
    """A night per shift in percent, each with a run per shift in thousandths."""
    return [[700 * (1 + shift / 100 + run / 1000) for run in runs] for shift in shifts]


@pytest.mark.parametrize(
    ("history", "before_golden", "figures", "tails", "odd", "levels", "evidence"),
    [
    pytest.param(
        nights(SHIFTS), 0,
        (0.0, 0, 0.0087901, 11, 1.0, 700.408, 12, 12, 0.0, 703.5, 700.0, 0.00704487),
        [0.00767643, 0.409052, 0.00826645, 0.207447, 0.0087901, 0.383501],
        [], [700.408],
        [0.00212069, 0.0119189, 0.0259245, 0.00824085, 0.312717, 0.0876753, 0.0363831, 0.00919775],
        id="one run a night",
    ),
    pytest.param(
        nights((*SHIFTS[:6], *(shift - 8 for shift in SHIFTS[6:])), (-4, 1, 3)), 2,
        (0.0037634, 24, 0.00956546, 10, 3.0, 644.233, 6, 18, 0.0, 698.6, 644.0, 0.028171),
        [0.00838597, 0.404618, 0.00901167, 0.207603, 0.00956546, 0.387779],
        [], [700.583, 644.233],
        [0.0124127, 0.0122416, 0.0779021, 0.00952835, 0.315433, 0.0877257, 0.00080016, 0.0096699],
        id="a step, three runs a night",
    ),
    pytest.param(
        nights((*SHIFTS[:3], 9, *SHIFTS[3:8], -40, *SHIFTS[8:])), 0,
        (0.0, 0, 0.0259964, 12, 1.0, 705.223, 13, 13, 0.0, 703.5, 700.0, 0.0156298),
        [0.0106657, 0.953124, 0.0142726, 0.0448428, 0.0259964, 0.00203342],
        [9, -0.399086], [705.223],
        [0.0122606, 0.0138954, 0.0609819, 0.0109057, 0.276857, 0.0879658, 0.21244, 0.0116456],
        id="odd nights",
    ),
    pytest.param(
        nights((0, 0.1, 0.2, 14, 0.1, 0, 0.2, 0.1, -0.1, -9, 0, 0.1), (-3, 3)), 0,
        (0.00423967, 10, 0.00094802, 9, 2.0, 700.49, 10, 20, 0.0, -1, 700.0, 0.000740559),
        [0.000770624, 0.532528, 0.000860194, 0.194825, 0.00094802, 0.272647],
        [3, 0.138861, 9, -0.0906819], [700.49],
        [0.00241987, 0.00861102, 3.34678e-08, 0.00321121, 0.313064, 0.0872872, 1.80514e-09, 0.00408497],
        id="odd nights of two runs",
    ),
    pytest.param(
        nights((0, 0.1, 0.2, 14, 0.1, 0)), 0,
        (0.0, 0, 0.000835991, 4, 1.0, 700.56, 5, 5, 0.0, -1, 700.7, -1),
        [0.000715248, 0.594933, 0.000781182, 0.178139, 0.000835991, 0.226928],
        [3, 0.139146], [700.56],
        [0.000201697, 0.00864415, 0.000101353, 0.000756082, 0.312493, 0.0872904, 2.04549e-06, 0.00415435],
        id="an odd night",
    ),
    pytest.param(
        nights((0, 1, 2, 2.5, 3, 2.5, 2, 1, 0, -1, -2, -2.5, -3, -2.5, -2, -1)), 4,
        (0.0, 0, 0.0112389, 14, 1.0, 686.0, 7, 7, 0.613422, 714.0, 687.167, 0.0217298),
        [0.00834232, 0.33069, 0.00902299, 0.213187, 0.00966251, 0.456123],
        [], [710.889, 686.0],
        [0.0133459, 0.0125342, 0.0869416, 0.00910803, 0.315423, 0.0877611, 0.014535, 0.00998214],
        id="drift",
    ),
    pytest.param(
        nights((0, 0.2, 5, 0.1)), 1,
        (0.0, 0, 0.024193, 3, 1.0, 712.367, 3, 3, 0.0, -1, 712.367, -1),
        [], [], [709.275],
        [0.0939337, 0.00861102, 0.196467, 0.0, 0.233637, 0.0872872, 0.525638, 0.00408497],
        id="four nights",
    ),
    pytest.param(
        [[700, 707], [703], [690, 700, 704], [701, 699]], 0,
        (0.00814666, 4, 0.00369986, 3, 1.71429, 700.5, 4, 8, 0.0, -1, 700.333, -1),
        [], [], [701.125],
        [0.000102611, 0.00861102, 0.0473339, 0.00814666, 0.312633, 0.0872872, 0.029628, 0.00544204],
        id="uneven runs",
    ),
    pytest.param(
        [[700, 700]] * 6, 2,
        (0.0, 6, 0.0, 5, 2.0, 700.0, 4, 8, 0.0, 700.0, 700.0, -1),
        [], [], [700.0],
        [0.00549001, 0.00861102, 0.0, 0.0, 0.316854, 0.0872872, 5.54808e-05, 0.00408497],
        id="equal runs",
    ),
    ],
)  # fmt: skip
def test_the_noise_of_typical_histories_and_the_evidence_by_it(
    history, before_golden, figures, tails, odd, levels, evidence
):
    """A change of these figures changes verdicts. -1: None. ``evidence``: p-value and noise of each of ``TONIGHT``."""
    noise = known_noise(history, before_golden)
    assert [-1 if (value := getattr(noise, name)) is None else value for name in FIGURES] == pytest.approx(
        figures, rel=1e-5
    )
    assert [value for tail in noise.tails for value in (tail.scale, tail.weight)] == pytest.approx(tails, rel=1e-5)
    assert [value for night in noise.odd for value in (night.index, night.change)] == pytest.approx(odd, rel=1e-5)
    assert noise.levels == pytest.approx(levels, rel=1e-5)
    found = [evidence_of(values, golden, noise) for values, golden in TONIGHT]
    assert [value for each in found for value in (each.p_value, each.noise)] == pytest.approx(evidence, rel=1e-5)


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
    noise = noise_in(nights_of(history, "tflops_per_gpu", run, GOLDEN, None))
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
    noise = noise_in(nights_of(history, "tflops_per_gpu", run, GOLDEN, "2026-01-15T03:00:00Z"))
    assert noise is not None
    assert (noise.num_runs, noise.level) == (2, 100.0)


def test_a_golden_without_a_date_is_reported(kept):
    run, build = kept
    with pytest.raises(BadRequestError, match="'yesterday': not an ISO-8601 time"):
        nights_of([build(5, 99.0)], "tflops_per_gpu", run, "yesterday", None)


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
