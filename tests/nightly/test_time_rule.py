"""The rule for throughput: what it calls a regression, what it leaves open, and what more runs should settle."""

import math

import pytest

from harness.nightly.evidence import Reference
from harness.nightly.known_noise import KnownNoise, known_noise
from harness.nightly.rules import NightBefore, TimeLimits, is_suspicious, judge_time
from harness.records.metrics import METRICS

THROUGHPUT = next(metric for metric in METRICS if metric.name == "tflops_per_gpu")
SHAPE = [0.99, 1.01, 1.0, 1.005, 0.995]
GOLDEN = Reference(700.0, 0.0079, 5)
LIMITS = TimeLimits(threshold=0.05, alpha=0.0002)
NIGHTS = known_noise([[700 * share for share in SHAPE]] * 20)


def runs(level, num=5):
    return [700 * level * share for share in SHAPE[:num]]


def verdict(values, golden=GOLDEN, history=NIGHTS, limits=LIMITS):
    return judge_time(THROUGHPUT, values, golden, history, limits).verdict


@pytest.mark.parametrize(
    ("level", "expected"),
    [(1.0, "pass"), (0.985, "pass"), (0.97, "regression"), (0.95, "regression"), (0.9, "regression"),
     (1.015, "pass"), (1.03, "improvement"), (1.2, "improvement")],
)  # fmt: skip
def test_five_repeats_with_known_nights(level, expected):
    assert verdict(runs(level)) == expected


def test_two_nights_that_are_faster_alike_need_no_agreement_to_be_an_improvement():
    found = judge_time(THROUGHPUT, runs(1.2), GOLDEN, NIGHTS, LIMITS, NightBefore(runs(1.2), NIGHTS))
    assert (found.verdict, found.reason, found.evidence.is_repeated) == ("improvement", "", False)


def test_a_change_that_hardly_is_noise_but_does_not_matter_passes_and_reports_it():
    found = judge_time(THROUGHPUT, runs(0.982), GOLDEN, NIGHTS, TimeLimits(threshold=0.05, alpha=0.001))
    assert found.reason == "unlikely to be noise, but smaller than 2 %"


def test_until_nights_are_known_only_changes_beyond_the_threshold_count():
    assert verdict(runs(0.97), history=None) == "pass"
    assert verdict(runs(0.93), history=None) == "regression"


def test_a_threshold_below_two_percent_is_the_smallest_change_that_counts():
    tight = TimeLimits(threshold=0.01, alpha=0.001)
    assert verdict(runs(0.982), limits=tight) == "regression"
    assert verdict(runs(0.985), history=None, limits=tight) == "inconclusive"


def test_beyond_the_threshold_within_the_noise_is_inconclusive_with_numbers():
    values = [700 * share for share in (0.7, 1.1, 0.9, 1.0, 0.8)]
    found = judge_time(THROUGHPUT, values, Reference(700.0, 0.15, 5), None, LIMITS)
    assert found.verdict == "inconclusive"
    assert found.reason.startswith("beyond 5 %, but ")
    assert "is above the limit of 0.0002; " in found.reason


def test_better_than_the_threshold_within_the_noise_passes():
    values = [700 * share for share in (0.9, 1.3, 1.1, 1.2, 1.0)]
    assert verdict(values, golden=Reference(700.0, 0.15, 5), history=None) == "pass"


def test_one_run_beyond_the_threshold_is_suspected_and_not_called_while_nothing_is_known_of_noise():
    found = judge_time(THROUGHPUT, [630.0], Reference(700.0, None, 1), None, LIMITS)
    assert (found.verdict, found.evidence and found.evidence.p_value) == ("inconclusive", None)
    assert is_suspicious(THROUGHPUT, found)


def test_three_runs_all_beyond_the_threshold_are_a_regression_on_less_evidence():
    single_run = Reference(700.0, None, 1)
    beyond, one_within = [630.0, 632.0, 634.0], [630.0, 632.0, 666.0]
    found = judge_time(THROUGHPUT, beyond, single_run, None, LIMITS)
    assert found.evidence is not None and found.evidence.p_value is not None
    assert LIMITS.alpha < found.evidence.p_value < 0.01
    assert found.verdict == "regression"
    assert verdict(one_within, golden=single_run, history=None) == "inconclusive"


def test_exactly_the_threshold_passes_as_in_the_plain_gate():
    assert verdict([665.0] * 5, golden=Reference(700.0, 0.0, 5), history=None) == "pass"
    assert verdict([664.9] * 5, golden=Reference(700.0, 0.0, 5), history=None) == "regression"


@pytest.mark.parametrize("values", [[], [math.nan, 700.0], [0.0]])
def test_what_is_no_figure_is_inconclusive_and_not_repeated(values):
    found = judge_time(THROUGHPUT, values, GOLDEN, NIGHTS, LIMITS)
    assert (found.verdict, found.change, found.evidence) == ("inconclusive", None, None)
    assert not is_suspicious(THROUGHPUT, found)


@pytest.mark.parametrize(
    ("level", "expected"), [(0.97, True), (0.984, True), (0.995, False), (1.0, False), (1.1, False)]
)
def test_what_further_runs_should_confirm(level, expected):
    assert is_suspicious(THROUGHPUT, judge_time(THROUGHPUT, runs(level), GOLDEN, NIGHTS, LIMITS)) is expected


RESTLESS = [[700 * (1 + 0.01 * shift)] for shift in (0.5, -1.1, 0.8, -0.2, 1.4, -0.9, 0.1, -0.6, 0.7, -1.3, 0.3, 1.0)]
CALM = [[700 * (1 + 0.003 * shift)] for shift in (0.5, -1.1, 0.8, -0.2, 1.4, -0.9, 0.1, -0.6, 0.7, -1.3, 0.3, 1.0)]
SINGLE = Reference(700.0, None, 1)
ONE_CASE = TimeLimits(threshold=0.05, alpha=0.01)


def judged(tonight, nights, before=None, limits=LIMITS, golden=SINGLE):
    found = judge_time(THROUGHPUT, tonight, golden, known_noise(nights), limits, before)
    return found.verdict.value, found.reason


@pytest.mark.parametrize("odd", [1.1, 0.9, 1.5, 0.5])
@pytest.mark.parametrize("change", [-0.05, -0.08])
def test_one_odd_night_does_not_hide_a_later_regression(odd, change):
    nights = [*CALM[:6], [700 * odd], *CALM[6:]]
    assert judged([700 * (1 + change)], nights, limits=ONE_CASE) == ("regression", "")


def test_a_change_in_restless_nights_is_red_once_the_next_night_agrees():
    first = judged([630.0], RESTLESS)
    assert first[0] == "inconclusive"
    again = judged([627.0], [*RESTLESS, [630.0]], NightBefore([630.0], known_noise(RESTLESS)))
    assert again == ("regression", "the night before had -10.0 %")
    other = judged([627.0], [*RESTLESS, [470.0]], NightBefore([470.0], known_noise(RESTLESS)))
    assert other[0] == "inconclusive"


def test_two_nights_within_the_threshold_agree_only_if_they_differ_sharply_from_those_before():
    nights = [*CALM[:3], [400.0], *CALM[3:8], [350.0], *CALM[8:]]
    first = judged([667.0], nights)
    assert first[0] == "pass"
    assert judged([669.0], [*nights, [667.0]], NightBefore([667.0], known_noise(nights)))[0] == "regression"
    assert judged([669.0], [*RESTLESS, [667.0]], NightBefore([667.0], known_noise(RESTLESS)))[0] == "pass"


def test_nights_that_slide_slowly_do_not_agree_on_a_change_beyond_the_threshold():
    slide = [[700 * (1 - 0.0045 * i)] for i in range(12)]
    steady = [*CALM, *CALM]
    loose = TimeLimits(threshold=0.05, alpha=0.2)
    for nights, agrees in ((slide, False), (steady, True)):
        before = NightBefore([660.0], known_noise(nights))
        assert ("the night before" in judged([658.0], [*nights, [660.0]], before, loose)[1]) is agrees


def test_a_habit_of_odd_nights_makes_the_first_one_inconclusive():
    nights = [*CALM[:3], [400.0], *CALM[3:8], [350.0], *CALM[8:]]
    verdict, reason = judged([380.0], nights, limits=ONE_CASE)
    assert verdict == "inconclusive"
    assert reason.startswith("-45.7 %, but 2 earlier nights of this case came out as odd (-50.0 %, -42.9 %) and passed")
    assert judged([380.0], [*nights, [381.0]], NightBefore([381.0], known_noise(nights)), ONE_CASE)[0] == "regression"


def test_a_single_gross_night_before_is_a_habit_only_for_another_gross_one():
    nights = [*CALM[:3], [400.0], *CALM[3:]]
    assert judged([420.0], nights, limits=ONE_CASE)[0] == "inconclusive"
    assert judged([640.0], nights, limits=ONE_CASE)[0] == "regression"


def test_a_golden_of_an_odd_night_is_no_measure():
    high = Reference(770.0, None, 1)
    nights = known_noise(CALM, num_before_golden=6)
    usual = judge_time(THROUGHPUT, [701.0], high, nights, ONE_CASE)
    assert usual.verdict.value == "inconclusive"
    assert "the golden is +10.0 % off the nights around it" in usual.reason
    worse = judge_time(THROUGHPUT, [645.0], high, nights, ONE_CASE)
    assert worse.verdict.value == "regression"


def test_a_level_that_lasts_is_a_regression_although_each_night_was_in_doubt():
    nights = [*RESTLESS, [644.0], [655.0], [648.0], [640.0]]
    verdict, reason = judged([646.0], nights, golden=Reference(702.0, None, 1))
    assert (verdict, "like the 4 nights before" in reason) == ("regression", True)


@pytest.mark.parametrize(
    ("drift", "change", "is_red"),
    [(0.0, -0.06, True), (0.7, -0.06, False), (0.7, -0.12, True)],
    ids=["no drift", "as far as nights drift", "further than nights drift"],
)
def test_a_lasting_step_of_nights_that_drift_must_exceed_their_drift(drift, change, is_red):
    level = 700 * (1 + change)
    history = KnownNoise(
        0.003, 40, 0.015, 9, 5, level=level, num_nights=10, num_runs=50, drift=drift, levels=(700.0, level)
    )
    found = judge_time(THROUGHPUT, [level] * 5, Reference(700.0, 0.003, 5), history, LIMITS)
    assert ("like the 10 nights before" in found.reason) is is_red
    assert (found.verdict == "regression") is is_red


@pytest.mark.parametrize(("spread", "agrees"), [(0.02, True), (0.002, False)])
def test_nights_agree_within_the_noise_of_their_own_runs(spread, agrees):
    tonight, earlier = ([700 * level * (1 + spread * x) for x in (-1.5, -0.5, 0, 0.5, 1.5)] for level in (0.88, 0.85))
    _, reason = judged(tonight, [*CALM, earlier], NightBefore(earlier, known_noise(CALM)), ONE_CASE)
    assert ("the night before had" in reason) is agrees
