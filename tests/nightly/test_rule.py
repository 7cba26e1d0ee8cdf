"""The rule for times: each of its lines, and on which side of each limit a case is."""

import json
import math
import re
from pathlib import Path

import pytest

from harness.judge.gate import Verdict
from harness.nightly import rule
from harness.nightly.rule import LOOK_BACK, Night, Reference, accident_in, judge_time, level_of
from harness.nightly.values import Accident
from harness.records.metrics import BY_NAME

THROUGHPUT = BY_NAME["tflops_per_gpu"]
GOLDEN = Reference(700.0, 0.0, 5)
ROOT = Path(__file__).parents[2]
SHIFTS = (0.5, -1.1, 0.8, -0.2, 1.4, -0.9, 0.1, -0.6, 0.7, -1.3, 0.3, 1.0)


def night(level, **changes):
    return Night([700 * level] * 5, **changes)


def nights(spread=0.003):
    """Twelve nights whose median is the golden; ``spread``: their standard deviation, about."""
    return [night(1 + spread * shift) for shift in SHIFTS]


def judged(level, again=None, history=None, golden=GOLDEN, threshold=0.05, accident=None):
    runs = ([700 * level] * 5, [] if again is None else [700 * again] * 3)
    return judge_time(THROUGHPUT, runs, golden, nights() if history is None else history, threshold, accident)


def verdict(*args, **words):
    return judged(*args, **words).verdict.value


def test_the_guide_has_the_five_lines_of_the_code_and_as_many_rows_as_gate_json_that_are_often_falsely_red():
    guide, lines = (ROOT / "harness" / "nightly" / "README.md").read_text(), rule.__doc__[rule.__doc__.index("1. ") :]
    assert " ".join(lines.split()) in " ".join(guide.split())
    rows = json.loads((ROOT / "results" / "benchmarks" / "gate.json").read_text())["rows"]
    number = ("no", "one", "two", "three", "four", "five")[sum("false_red" in row["missed"] for row in rows)]
    assert f"falsely red in {number} rows of gate.json" in guide


def test_what_the_guide_derives_by_hand_is_what_the_rule_finds():
    guide = (ROOT / "harness" / "nightly" / "README.md").read_text()
    row = r"^\| ([\d ]+) \| (\d+), .*? ([\d.]+) % \| ([\d.]+) % \| (\S+) %: (\w+) \| ([\d.]*)"
    rows = re.findall(row, guide, re.MULTILINE)
    for values, level, spread, limit, change, outcome, confirmed in rows:
        history = [Night([float(value)] * 5) for value in values.split()]
        found = judged(658 / 700, history=history)
        assert (found.evidence.level, found.judged_change) == (
            float(level),
            pytest.approx(float(change) / 100, abs=5e-4),
        )
        assert [round(found.evidence.spread * 100, 2), round(found.threshold * 100, 1)] == [float(spread), float(limit)]
        assert found.evidence.is_suspicious is (outcome == "suspicious")
        if confirmed:
            of_golden = found.evidence.level / 700
            again = [
                verdict(658 / 700, (1 - float(confirmed) / 100 + off) * of_golden, history) for off in (-1e-3, 1e-3)
            ]
            assert again == ["regression", "inconclusive"]
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("level", "outcome", "is_suspicious"),
    [(1.0, "pass", False), (0.952, "pass", False), (0.948, "inconclusive", True), (1.04, "pass", False),
     (1.06, "improvement", False)],
)  # fmt: skip
def test_worse_than_the_threshold_is_suspicious(level, outcome, is_suspicious):
    found = judged(level)
    assert (found.verdict.value, found.evidence.is_suspicious) == (outcome, is_suspicious)


def test_exactly_the_threshold_passes_as_in_the_plain_gate():
    flat = [night(1.0)] * 5
    assert verdict(0.95, history=flat) == "pass"
    assert verdict(0.9499, history=flat) == "inconclusive"


@pytest.mark.parametrize(
    ("again", "outcome"),
    [
        (0.93, "regression"),
        (0.954, "regression"),
        (0.958, "inconclusive"),
        (1.0, "inconclusive"),
        (None, "inconclusive"),
    ],
)
def test_it_is_red_if_the_confirming_runs_agree_within_a_spread(again, outcome):
    assert verdict(0.93, again) == outcome


def test_runs_that_are_only_together_within_the_threshold_are_yellow():
    found = judge_time(THROUGHPUT, ([660.0] * 3, [690.0] * 3), GOLDEN, nights(), 0.05)
    assert (found.verdict, found.change) == (Verdict.INCONCLUSIVE, pytest.approx(-0.036, abs=1e-3))


def test_restless_nights_need_more_than_the_threshold():
    restless = nights(0.03)
    level = level_of(restless, GOLDEN)
    assert 0.02 < level.spread < 0.04
    each = [level.value / 700 * (1 - times * level.spread) for times in (2.9, 3.1)]
    within, beyond = judged(each[0], history=restless), judged(each[1], each[1], restless)
    assert (within.verdict, within.evidence.is_suspicious) == (Verdict.INCONCLUSIVE, False)
    assert (beyond.verdict, beyond.evidence.is_suspicious) == (Verdict.REGRESSION, True)
    assert verdict(each[1], level.value / 700 * (1 - 2 * level.spread), restless) == "inconclusive"
    bad, worse = (level.value / 700 * (1 - times * level.spread) for times in (4, 6))
    assert verdict(worse, history=[*restless, night(bad)]) == "regression"


def test_runs_that_spread_widely_are_no_evidence():
    wide = [700 * level for level in (0.7, 1.05, 0.85, 0.95, 0.9)]
    found = judge_time(THROUGHPUT, (wide, [630.0] * 3), GOLDEN, nights(), 0.05)
    assert (found.verdict, found.evidence.is_suspicious) == (Verdict.INCONCLUSIVE, False)


def test_five_nights_take_the_place_of_the_golden():
    golden = Reference(714.0, 0.0, 5)
    few, enough = ([night(1.0)] * num for num in (4, 5))
    assert (level_of(few, golden).value, level_of(few, golden).num_nights) == (714.0, 0)
    assert (level_of([*enough, *few], golden).value, level_of([*enough, *few], golden).num_nights) == (714.0, 0)
    assert level_of(enough, GOLDEN).num_nights == 5
    around = [*(night(1 + 0.02 * shift, is_older=True) for shift in SHIFTS), *enough]
    assert level_of(around, golden).value == pytest.approx(700, rel=0.01)


def test_before_five_nights_a_change_must_exceed_what_nights_commonly_differ_by():
    assert [verdict(level, level, [night(1.0)] * 4) for level in (0.948, 0.946)] == ["inconclusive", "regression"]
    noisy = Reference(700.0, 0.04, 5)
    assert verdict(0.92, 0.92, [], golden=noisy) == "inconclusive"


def test_a_level_is_that_of_the_golden_not_of_a_later_step():
    stepped = [*[night(1.0)] * 8, *[night(0.94)] * 8]
    assert level_of(stepped, GOLDEN).value == 700.0
    promoted = [*[night(1.06, is_older=True)] * 8, *[night(1.0)] * 8]
    assert level_of(promoted, GOLDEN).value == 700.0


def test_a_golden_with_few_nights_at_its_level_is_compared_alone_as_one_night_with_another():
    golden = Reference(700.0, 0.02, 5)
    level = level_of([*[night(1.0, is_older=True)] * 3, *[night(0.94)] * 9], golden)
    assert (level.value, level.num_nights) == (700.0, 0)
    assert level.spread == pytest.approx(math.sqrt(2) * 0.02 * 1.2533 / math.sqrt(5), rel=1e-3)


def test_a_spread_is_at_least_what_runs_themselves_spread():
    level = level_of([Night([690.0, 700.0, 710.0])] * 6, GOLDEN)
    assert level.spread == pytest.approx(1.2533 * (1 / 70) / math.sqrt(3), rel=1e-3)


def test_red_nights_and_those_of_long_ago_count_for_no_level():
    assert level_of([night(1.0)] * 4 + [night(0.9, is_red=True)] * 9, GOLDEN).num_nights == 0
    assert level_of([night(1.0)] * (LOOK_BACK + 9), GOLDEN).num_nights == LOOK_BACK


def test_a_second_night_as_bad_is_red_without_more():
    bad = [*nights(), night(0.92)]
    assert verdict(0.925, history=bad) == "regression"
    assert verdict(0.925, history=[*nights(), night(0.945)]) == "regression"
    assert verdict(0.89, history=bad) == "inconclusive"
    assert verdict(0.935, history=[*nights(), night(0.955)]) == "inconclusive"
    assert verdict(0.925, history=[*nights(), night(0.92, is_older=True)]) == "inconclusive"


@pytest.mark.parametrize(
    ("last", "tonight", "is_red"),
    [((0.954, 0.952), 0.953, True), ((0.976, 0.952), 0.953, False), ((0.96, 0.96), 0.953, False),
     ((0.954, 0.952), 0.98, False)],
    ids=["three nights", "one is not half as bad", "median within a spread", "tonight is better"],
)  # fmt: skip
def test_three_nights_are_red_together(last, tonight, is_red):
    found = judged(tonight, history=[*nights(), *map(night, last)])
    assert (found.verdict is Verdict.REGRESSION, found.evidence.is_suspicious) == (is_red, is_red)


def test_three_nights_are_all_since_the_golden_and_red_ones_before_them_do_not_matter():
    older = [Night(each.values, is_older=True) for each in nights()]
    assert verdict(0.953, history=[*older, night(0.954, is_older=True), night(0.952)]) == "pass"
    assert (
        verdict(0.953, history=[*nights(), *[night(0.952, is_red=True)] * 5, *map(night, (0.954, 0.952))])
        == "regression"
    )


def test_three_nights_that_drift_on_from_nights_before_are_no_change():
    slide = [night(level) for level in (1.0, 1.01, 0.99, 1.0, 1.0, 0.97, 0.968, 0.97, 0.968, 0.97)]
    assert verdict(0.953, history=[*slide, night(0.954), night(0.952)]) == "pass"


@pytest.mark.parametrize(
    ("change", "level", "outcome"),
    [(-0.08, 0.93, "inconclusive"), (0.08, 0.93, "inconclusive"), (-0.06, 0.93, "regression"),
     (-0.11, 0.7, "inconclusive"), (-0.09, 0.7, "regression")],
)  # fmt: skip
def test_after_an_accident_as_bad_the_first_night_is_yellow(change, level, outcome):
    assert verdict(level, level, accident=Accident("other", change)) == outcome
    assert verdict(level, history=[*nights(), night(level)], accident=Accident("other", change)) == "regression"


@pytest.mark.parametrize(
    ("levels", "found"),
    [((0.9,), -0.1), ((1.2,), 0.2), ((0.8, 1.0, 1.1), -0.2), ((0.9, 0.9), None), ((0.965, 1.0, 1.03), None)],
    ids=["bad", "good", "the larger", "repeated", "within the threshold"],
)
def test_an_accident_is_a_single_night_far_from_its_level(levels, found):
    history = [*nights(), *map(night, levels), *nights()]
    assert accident_in(history, 0.05) == (None if found is None else pytest.approx(found, abs=0.005))


def test_the_last_night_and_nights_of_long_ago_are_no_accident():
    assert accident_in([*nights(), night(0.8)], 0.05) is None
    assert accident_in([night(1.0), night(0.8), *[night(1.0)] * 3], 0.05) == pytest.approx(-0.2)
    assert accident_in([*nights(), night(0.8), *[night(1.0)] * LOOK_BACK], 0.05) is None
    assert accident_in([*nights(0.03), night(0.94), *nights(0.03)], 0.05) is None
    assert accident_in([night(1.0), night(0.8), *[night(1.0)] * 2], 0.05) is None


def test_a_golden_far_from_its_nights_is_named():
    around = [Night(each.values, is_older=i < 6) for i, each in enumerate(nights())]
    near, far = (judged(1.0, history=around, golden=Reference(value, 0.0, 5)) for value in (733.0, 770.0))
    assert (near.verdict, near.reason, far.verdict) == (Verdict.PASS, "", Verdict.PASS)
    assert far.reason


@pytest.mark.parametrize("values", [[], [math.nan, 700.0], [0.0]])
def test_what_is_no_figure_is_inconclusive_and_not_repeated(values):
    found = judge_time(THROUGHPUT, (values, []), GOLDEN, nights(), 0.05)
    assert (found.verdict, found.change, found.evidence) == (Verdict.INCONCLUSIVE, None, None)
