"""How much a recorded difference can change a metric."""

import pytest

from harness.explain.effects import clocks, imbalance, recompute, threads, unsteadiness
from harness.explain.facts import run_side
from harness.explain.judge import NOTHING, advice, moved
from harness.explain.values import Cause, Change, MetricFit, Side
from harness.judge.differences import Difference


def side(*, num_threads=None, **numbers):
    facts = {("environment", "OMP_NUM_THREADS"): num_threads} if num_threads else {}
    return Side("a", "run", {}, facts, frozenset(), numbers=numbers)


@pytest.mark.parametrize(
    ("here", "there", "text", "sign"), [(0.3, 0.1, "less steady here", 1), (0.1, 0.3, "less steady there", -1)]
)
def test_the_less_steady_side_is_slower(here, there, text, sign):
    found = unsteadiness(side(spread_of_steps=here), side(spread_of_steps=there))
    assert (found.text, found.step_time_sign) == (text, sign)


@pytest.mark.parametrize(("ours", "theirs"), [({}, {"spread_of_steps": 0.1}), ({"spread_of_steps": 0.1}, {})])
def test_without_steadiness_of_both_sides_there_is_no_estimate(ours, theirs):
    assert unsteadiness(side(**ours), side(**theirs)) is None


@pytest.mark.parametrize(("here", "there", "sign"), [("8", "4", -1), ("4", "8", 1)])
def test_more_threads_make_steps_shorter(here, there, sign):
    found = threads(side(num_threads=here), side(num_threads=there))
    assert (found.text, found.step_time_sign) == (f"{here} threads per rank here, {there} there", sign)


@pytest.mark.parametrize(("here", "there"), [("4", "4"), ("4", None), (None, "4"), ("many", "4"), ("4", "many")])
def test_equal_or_unknown_threads_give_no_estimate(here, there):
    assert threads(side(num_threads=here), side(num_threads=there)) is None


def test_steps_take_longer_in_proportion_to_the_slowest_clock():
    found = clocks(side(sm_clock_min_mhz=1500.0), side(sm_clock_min_mhz=1980.0))
    assert (found.text, found.step_time) == ("slowest SM clock 1500 MHz here, 1980 MHz there", pytest.approx(0.32))


def test_the_other_side_counts_as_balanced_without_a_reading():
    found = imbalance(side(imbalance=0.05), side())
    assert (found.text, found.step_time) == (
        "the slowest rank is 5.0 % slower than the median rank here",
        pytest.approx(0.05),
    )


def test_the_side_that_recomputes_more_takes_longer_and_keeps_less(make_record, make_spec):
    all_of_it = make_spec(gpu="cpu", recompute="full:uniform:1")
    more, none = run_side(make_record(all_of_it)), run_side(make_record(make_spec(gpu="cpu", recompute="none")))
    found, back = recompute(more, none), recompute(none, more)
    share = found.step_time
    assert found.text == f"recompute repeats {share * 100:.1f} % of the model FLOPs here, 0.0 % there"
    assert back.text == f"recompute repeats 0.0 % of the model FLOPs here, {share * 100:.1f} % there"
    assert (found.memory_sign, back.memory_sign) == (-1, 1)
    assert back.step_time == pytest.approx(1 / (1 + share) - 1)
    assert recompute(more, more).step_time is None


@pytest.mark.parametrize(
    ("change", "is_moved"), [(NOTHING, True), (-NOTHING, True), (NOTHING * 0.99, False), (None, False)]
)
def test_two_thousandths_are_a_change(change, is_moved):
    assert moved(Change("step_time_s", 1.0, 1.0, change)) is is_moved


def cause(name, fit):
    differences, fits = (Difference(name, "b", "a", group="environment"),), (MetricFit("step_time_s", fit, ""),)
    return Cause(name=name, differences=differences, says=fits, size="", why="")


SLOWER = (Change("step_time_s", 1.1, 1.0, 0.1, noise=0.01),)


@pytest.mark.parametrize(
    ("causes", "text"),
    [
        ((cause("cuDNN", "all"),), "undo one difference at a time, beginning with: cuDNN"),
        ((cause("cuDNN", "no"),), "repeat the run on another node; if the change stays, check"),
        (
            (cause("a slow rank", "all"),),
            "first repeat the run on another node, or on this node when it is idle and cool",
        ),
        ((cause("a slow rank", "no"),), "repeat the run on another node; if the change stays, check"),
    ],
)
def test_the_advice_is_on_causes_that_can_explain_the_change(causes, text):
    (advised,) = advice(SLOWER, causes, is_published=False)
    assert advised.startswith(text)


def test_without_a_change_there_is_no_advice():
    assert advice((Change("step_time_s", 1.0, 1.0, 0.0),), (cause("cuDNN", "all"),), is_published=True) == ()


def test_a_zero_is_no_value(make_record, make_rank, make_spec):
    spec = make_spec(gpu="cpu")
    ranks = tuple(make_rank(spec, rank, counted_flops_per_step=0) for rank in range(spec.num_gpus))
    assert "counted_flops_per_step" in run_side(make_record(spec)).metrics
    assert "counted_flops_per_step" not in run_side(make_record(spec, ranks=ranks)).metrics
