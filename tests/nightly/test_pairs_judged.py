"""Pairs of old and new build: which of them decide something."""

from pathlib import Path

import pytest

from harness.nightly.pairs import fault_of, sides_of
from harness.nightly.values import CaseRun

NUMBERS = range(3, 7)


@pytest.fixture(name="runs")
def _runs(make_spec, make_record):
    """Two pairs, of 1, 2, 2 and 1 s a step. ``ends``: what differs, by number."""
    spec = make_spec(num_gpus=1, parallelism={}, measure={"max_steps": 20})

    def build(ends=None, numbers=NUMBERS):
        records = {
            number: make_record(spec, 1.0 + (place in (1, 2)), **{"status": "ok"} | (ends or {}).get(number, {}))
            for place, number in enumerate(numbers)
        }
        return [CaseRun(number, "pair", "", Path("runs"), record) for number, record in records.items()]

    return build


def test_runs_alternate_as_old_new_new_old(runs):
    _, (old, new) = sides_of(runs(), NUMBERS)
    assert [[metrics.step_time_s.median for metrics in side] for side in (old, new)] == [[1.0, 1.0], [2.0, 2.0]]
    assert fault_of(runs(), NUMBERS) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"numbers": range(3, 6)}, "is incomplete: 3 of 4 runs"),
        ({"ends": {4: {"status": "interrupted"}}}, "is incomplete: 3 of 4 runs"),
        ({"ends": {4: {"status": "failed", "failure": "it broke"}}}, "failed: run 4: it broke"),
        ({"ends": {5: {"status": "oom", "failure": "too large"}}}, "failed: run 5: out of memory: too large"),
        ({"ends": {6: {"suspect": ("throttled",)}}}, "is not usable: run 6 is suspect: throttled"),
    ],
)
def test_pairs_that_are_incomplete_or_not_usable_say_why(runs, changes, why):
    assert fault_of(runs(**changes), NUMBERS).startswith(why)
