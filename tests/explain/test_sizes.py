"""How much a recorded difference can change a metric."""

import pytest

from harness.explain.causes import NOTHING, advice, moved
from harness.explain.effects import recompute
from harness.explain.facts import run_side
from harness.explain.values import Cause, Change, MetricFit
from harness.records.golden import Difference


def test_the_side_that_recomputes_more_takes_longer(make_record, make_spec):
    all_of_it = make_spec(gpu="cpu", recompute="full:uniform:1")
    more, none = run_side(make_record(all_of_it)), run_side(make_record(make_spec(gpu="cpu", recompute="none")))
    found, back = recompute(more, none), recompute(none, more)
    assert back.step_time == pytest.approx(1 / (1 + found.step_time) - 1)
    assert recompute(more, more).step_time == 0


@pytest.mark.parametrize(
    ("change", "is_moved"), [(NOTHING, True), (-NOTHING, True), (NOTHING * 0.99, False), (None, False)]
)
def test_two_thousandths_are_a_change(change, is_moved):
    assert moved(Change("step_time_s", 1.0, 1.0, change)) is is_moved


def cause(name, fit):
    differences, fits = (Difference(name, "b", "a", group="environment"),), (MetricFit("step_time_s", fit, ""),)
    return Cause(name=name, differences=differences, says=fits, size="")


SLOWER = (Change("step_time_s", 1.1, 1.0, 0.1, noise=0.01),)


@pytest.mark.parametrize(
    ("name", "fit", "word"),
    [("cuDNN", "all", "cuDNN"), ("cuDNN", "no", "another node"), ("a slow rank", "all", "idle"),
     ("a slow rank", "no", "another node")],
)  # fmt: skip
def test_the_advice_is_on_causes_that_can_explain_the_change(name, fit, word):
    (advised,) = advice(SLOWER, (cause(name, fit),), is_published=False)
    assert word in advised


def test_without_a_change_there_is_no_advice():
    assert advice((Change("step_time_s", 1.0, 1.0, 0.0),), (cause("cuDNN", "all"),), is_published=True) == ()


def test_a_zero_is_no_value(make_record, make_rank, make_spec):
    spec = make_spec(gpu="cpu")
    ranks = tuple(make_rank(spec, rank, counted_flops_per_step=0) for rank in range(spec.num_gpus))
    assert "counted_flops_per_step" in run_side(make_record(spec)).metrics
    assert "counted_flops_per_step" not in run_side(make_record(spec, ranks=ranks)).metrics
