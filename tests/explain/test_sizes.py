"""By how much a recorded difference can have moved a metric."""

import pytest

from harness.explain.effects import clocks, imbalance, recompute, threads, unsteadiness
from harness.explain.facts import run_side
from harness.explain.judge import NOTHING, advice, moved
from harness.explain.values import Cause, Change, Departure, Says, Side


def side(*, num_threads=None, **numbers):
    facts = {("environment", "OMP_NUM_THREADS"): num_threads} if num_threads else {}
    return Side("a", "run", {}, facts, frozenset(), numbers=numbers)


@pytest.mark.parametrize(
    ("here", "there", "told", "sign"), [(0.3, 0.1, "less steady here", 1), (0.1, 0.3, "less steady there", -1)]
)
def test_who_is_less_steady_is_slower(here, there, told, sign):
    found = unsteadiness(side(spread_of_steps=here), side(spread_of_steps=there))
    assert (found.text, found.step_time_sign) == (told, sign)


@pytest.mark.parametrize(("ours", "theirs"), [({}, {"spread_of_steps": 0.1}), ({"spread_of_steps": 0.1}, {})])
def test_steadiness_that_one_side_does_not_know_says_nothing(ours, theirs):
    assert unsteadiness(side(**ours), side(**theirs)) is None


@pytest.mark.parametrize(("here", "there", "sign"), [("8", "4", -1), ("4", "8", 1)])
def test_more_threads_make_steps_shorter(here, there, sign):
    found = threads(side(num_threads=here), side(num_threads=there))
    assert (found.text, found.step_time_sign) == (f"{here} threads per rank here, {there} there", sign)


@pytest.mark.parametrize(("here", "there"), [("4", "4"), ("4", None), (None, "4"), ("many", "4"), ("4", "many")])
def test_the_same_threads_or_none_that_are_known_say_nothing(here, there):
    assert threads(side(num_threads=here), side(num_threads=there)) is None


def test_steps_take_longer_in_proportion_to_the_slowest_clock():
    found = clocks(side(sm_clock_min_mhz=1500.0), side(sm_clock_min_mhz=1980.0))
    assert (found.text, found.step_time) == ("slowest SM clock 1500 MHz here, 1980 MHz there", pytest.approx(0.32))


def test_the_other_side_is_balanced_where_it_says_nothing():
    found = imbalance(side(imbalance=0.05), side())
    assert (found.text, found.step_time) == (
        "the slowest rank is 5.0 % behind the middle one here",
        pytest.approx(0.05),
    )


def test_who_executes_more_again_takes_longer_and_keeps_less(make_record, make_spec):
    all_of_it = make_spec(gpu="cpu", recompute="full:uniform:1")
    more, none = run_side(make_record(all_of_it)), run_side(make_record(make_spec(gpu="cpu", recompute="none")))
    found, back = recompute(more, none), recompute(none, more)
    share = found.step_time
    assert found.text == f"recompute executes {share * 100:.1f} % of the model FLOPs again here, 0.0 % there"
    assert back.text == f"recompute executes 0.0 % of the model FLOPs again here, {share * 100:.1f} % there"
    assert (found.memory_sign, back.memory_sign) == (-1, 1)
    assert back.step_time == pytest.approx(1 / (1 + share) - 1)
    assert recompute(more, more).step_time is None


@pytest.mark.parametrize(
    ("change", "is_moved"), [(NOTHING, True), (-NOTHING, True), (NOTHING * 0.99, False), (None, False)]
)
def test_two_thousandths_are_a_change(change, is_moved):
    assert moved(Change("step_time_s", 1.0, 1.0, change)) is is_moved


def cause(name, fit):
    return Cause(1, name, (Departure("environment", name, "a", "b"),), (Says("step_time_s", fit, ""),), "", "")


SLOWER = (Change("step_time_s", 1.1, 1.0, 0.1, noise=0.01),)


@pytest.mark.parametrize(
    ("causes", "told"),
    [
        ((cause("cuDNN", "all"),), "change one thing back at a time, beginning with: cuDNN"),
        ((cause("cuDNN", "no"),), "repeat it on another node; if the change stays, look at"),
        ((cause("a slow rank", "all"),), "repeat it on another node, or here once it is idle and cool"),
        ((cause("a slow rank", "no"),), "repeat it on another node; if the change stays, look at"),
    ],
)
def test_only_what_can_explain_the_change_is_advised_on(causes, told):
    (advised,) = advice(SLOWER, causes, is_published=False)
    assert advised.startswith(told)


def test_where_nothing_moved_nothing_is_advised():
    assert advice((Change("step_time_s", 1.0, 1.0, 0.0),), (cause("cuDNN", "all"),), is_published=True) == ()


def test_a_figure_of_nought_is_no_figure(make_record, make_rank, make_spec):
    spec = make_spec(gpu="cpu")
    ranks = tuple(make_rank(spec, rank, counted_flops_per_step=0) for rank in range(spec.num_gpus))
    assert "counted_flops_per_step" in run_side(make_record(spec)).metrics
    assert "counted_flops_per_step" not in run_side(make_record(spec, ranks=ranks)).metrics
