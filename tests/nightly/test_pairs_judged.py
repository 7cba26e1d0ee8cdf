"""Pairs of old and new build: which of them decide something."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.judge.gate import Verdict
from harness.nightly.pairs import decided, judge_pairs
from harness.nightly.values import CaseFinding, CaseRun
from harness.records.batches import Build
from harness.records.night import Against, PlannedCase
from tests.conftest import build_rank

SPEED = "tflops_per_gpu"
OLD, NOISE = (1.0, 1.001, 0.999, 1.0, 1.002), (1.04, 0.97, 1.03, 0.96, 1.02)


@pytest.fixture(name="pairs")
def _pairs(make_spec, make_record):
    """The verdict on pairs with these seconds of a step; ``ends``: what differs, by number; ``larger``: the new peak."""
    spec = make_spec(num_gpus=1, parallelism={}, measure={"max_steps": 20})

    def build(new=OLD, old=OLD, *, ends=None, lost=(), larger=1.0, case=None):
        seconds = {True: iter(new), False: iter(old)}
        runs = []
        for place in range(2 * len(old)):
            is_new = place % 4 in (1, 2)
            rank = build_rank(spec, 0, next(seconds[is_new]))
            peak = round(rank.memory.max_allocated_bytes * (larger if is_new else 1.0))
            rank = rank.model_copy(update={"memory": rank.memory.model_copy(update={"max_allocated_bytes": peak})})
            record = make_record(spec, ranks=(rank,), **{"status": "ok"} | (ends or {}).get(place + 3, {}))
            runs.append(CaseRun(place + 3, "pair", "", Path("runs"), record))
        planned = PlannedCase(name="a", spec=spec, repeats=3, **(case or {}))
        against = Against(source="/old", num_pairs=len(old), build=Build(python="/old/bin/python"))
        return judge_pairs(planned, [run for run in runs if run.number not in lost], against)

    return build


def slower(factor, noise=(1.0,) * 5):
    return tuple(factor * one * other for one, other in zip(OLD, noise, strict=True))


@pytest.mark.parametrize(
    ("new", "case", "verdict", "is_sure"),
    [
        (OLD, {}, "pass", False),
        (slower(1.08), {}, "regression", True),
        (slower(1.03), {}, "regression", True),  # below the threshold of 5 %, above what matters
        (slower(1.015), {}, "pass", True),
        (slower(1.015), {"thresholds": {SPEED: 0.01}}, "regression", True),
        (slower(0.9), {}, "pass", True),
        (slower(1.03, NOISE), {}, "inconclusive", False),
        (slower(1.01, NOISE), {"thresholds": {SPEED: 0.3}}, "pass", False),
    ],
)
def test_the_mean_of_the_pairs_decides_where_it_is_more_than_their_noise(pairs, new, case, verdict, is_sure):
    found = pairs(new, case=case).of(SPEED)
    assert (found.verdict, found.p_value <= 0.005) == (verdict, is_sure)
    assert found.change == pytest.approx(sum(OLD) / sum(new) - 1, abs=2e-3)
    assert found.current / found.golden == pytest.approx(1 + found.change, rel=2e-3)
    assert 0 <= found.margin < (0.11 if new[0] > 1.04 else 0.01)
    assert bool(found.reason) is (verdict == "inconclusive")


def test_a_figure_of_memory_needs_no_statistics(pairs):
    found = {finding.metric: finding for finding in pairs(larger=1.06).findings}
    peak = found["peak_allocated_bytes"]
    assert (peak.verdict, peak.p_value, peak.margin) == ("regression", None, None)
    assert (peak.change, found[SPEED].verdict) == (pytest.approx(0.06), "pass")
    assert pairs(larger=1.04).of("peak_allocated_bytes").verdict == "pass"


def test_the_pairs_decide_what_the_golden_calls_worse_or_cannot_judge(pairs):
    worse, good = pairs(slower(1.08)), pairs()
    finding = CaseFinding(SPEED, 93.0, 100.0, -0.07, 0.05, Verdict.REGRESSION, "golden")
    calm = replace(finding, verdict=Verdict.PASS, reason="")
    assert decided(finding, None) == finding
    assert [decided(finding, each).verdict for each in (good, worse)] == ["pass", "regression"]
    assert [decided(calm, each).verdict for each in (good, worse)] == ["pass", "regression"]
    assert decided(calm, good) == calm
    assert re.search(r"-7.4 % .* 5 pairs \(p ", decided(finding, worse).reason)
    assert decided(replace(finding, metric="mfu"), worse).verdict == "regression"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"lost": (12,)}, ": 9 of 10 runs"),
        ({"ends": {4: {"status": "interrupted"}}}, ": 9 of 10 runs"),
        ({"ends": {4: {"status": "failed", "failure": "it broke"}}}, ": run 4: it broke"),
        ({"ends": {5: {"status": "oom", "failure": "too large"}}}, "out of memory: run 5: too large"),
        ({"ends": {6: {"suspect": ("throttled",)}}}, ": run 6 is suspect: throttled"),
    ],
)
def test_pairs_that_are_incomplete_or_not_usable_say_why(pairs, changes, why):
    found = pairs(**changes)
    assert why in found.fault
    assert bool(found.findings) is not bool(found.fault)
