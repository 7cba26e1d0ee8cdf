"""The search for the first bad revision, on simulated histories of 200 commits."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest

from harness.bisect.search import SAME, Found, Undecided, next_run

TRIALS = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "bench_gate.d" / "bisect_trials.py"))
COMMITS, PLACES, by_trace = (TRIALS[name] for name in ("COMMITS", "PLACES", "by_trace"))


def by_time(first_bad, seed, change, places=PLACES):
    """The answer, and the number of runs, where the step takes ``change`` longer from ``first_bad`` on."""
    return TRIALS["by_time"](0.02 * np.random.default_rng(seed).standard_normal(150), first_bad, change, places)


@pytest.mark.parametrize("first_bad", [1, 2])
def test_the_commit_after_good_and_the_last_one_are_found(first_bad):
    for place, places in ((first_bad, (0, 1, 2)), (COMMITS, PLACES), (1, (0, 1))):
        step, _ = by_time(place, 6, 0.2, places)
        assert isinstance(step, Found) and (step.place, step.before) == (place, place - 1)


def test_revisions_that_cannot_be_measured_are_no_places():
    places = tuple(place for place in PLACES if place not in (80, 81, 82))
    step, _ = by_time(81, 7, change=0.2, places=places)
    assert (step.place, step.before) == (83, 79)


def test_a_machine_that_differs_from_itself_ends_the_search():
    log = [0.0, 0.03, 0.2301, 0.2, 0.2001, 0.23, 0.0301, 0.0001]  # all second labels are 20 % slower
    step = next_run([(COMMITS if place in (1, 2, 5, 6) else 0, value) for place, value in enumerate(log)], PLACES, 150)
    assert isinstance(step, Undecided) and "the good revision differs from itself by +22.1 %" in step.reason


def test_a_bad_revision_that_is_faster_is_told():
    step, runs = by_time(1, 8, change=-0.5, places=(0, 1))
    assert isinstance(step, Undecided) and (step.reason, runs) == ("the bad revision is no slower than the good one", 8)


def test_a_change_of_memory_or_of_a_setting_is_found_in_at_most_2_log2_traces():
    for first_bad in (1, 2, 57, 128, 199, 200):
        for sides in ((1_000_000, 1_020_000), ("none", "mlp")):
            step, runs = by_trace(lambda place, sides=sides, first_bad=first_bad: sides[place >= first_bad])
            assert (step.place, step.before) == (first_bad, first_bad - 1)
            assert runs <= 2 * math.log2(COMMITS)


def test_small_changes_on_the_way_do_not_hide_the_large_one():
    step, _ = by_trace(lambda place: 1_000_000 + 10 * place + (20_000 if place >= 140 else 0))
    assert step.place == 140


def test_ends_that_do_not_differ_and_traces_that_vary_decide_nothing():
    assert by_trace(lambda place: 7)[0].reason == SAME
    values = iter(range(10))
    assert isinstance(by_trace(lambda place: next(values))[0], Undecided)
