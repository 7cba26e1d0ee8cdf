"""Nights of a case: what each measured, what changed between them, and the newest against those before it."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from harness.errors import BadRequestError
from harness.history.cases import named_case
from harness.history.changes import LOOK_BACK, ChangePoint, Trend, change_points, change_text, changes, notable, trend
from harness.history.record import HistoryFigure
from harness.history.series import nights_of, series_of


@pytest.fixture
def kept(make_kept):
    """A run an hour, with a step time too."""

    def build(number=0, tflops=700.0, **changes):
        fields = {
            "started_at": (datetime(2026, 1, 1, 2, tzinfo=UTC) + timedelta(hours=number)).isoformat(),
            "metrics": {"tflops_per_gpu": HistoryFigure(value=tflops), "step_time_s": HistoryFigure(value=2.0)},
            "git_commit": "aaaa",
        }
        return make_kept(number, **fields | changes)

    return build


def only(records):
    (night,) = nights_of(records)
    return night


def test_runs_of_one_night_are_one_point_with_their_median_and_spread(kept):
    night = only([kept(0, 690.0, night_id="n"), kept(1, 700.0, night_id="n"), kept(2, 740.0, night_id="n")])
    assert night.value("tflops_per_gpu") == 700.0
    assert night.spread("tflops_per_gpu") == pytest.approx(0.03725, rel=1e-3)
    assert night.started_at == kept(0).started_at


def test_repeats_of_a_sweeps_cell_are_one_point_and_ad_hoc_runs_one_each(kept):
    cells = [kept(n, run_id=f"20260102T030405Z-llama3-0a1b2c3d.{n // 2:03d}.{n % 2}") for n in range(4)]
    assert [len(night.records) for night in nights_of(cells)] == [2, 2]
    assert len(nights_of([kept(0), kept(1)])) == 2


def test_failed_and_suspect_runs_do_not_count_and_are_still_there(kept):
    bad = [kept(1, 1.0, night_id="n", status="failed"), kept(2, 2.0, night_id="n", suspect=("throttled",))]
    night = only([kept(0, night_id="n"), *bad])
    assert (night.value("tflops_per_gpu"), len(night.records), len(night.counted)) == (700.0, 3, 1)
    assert only([kept(0, status="failed")]).value("tflops_per_gpu") is None


@pytest.mark.parametrize(
    ("runs", "outcome"),
    [
        ([{"outcome": "regression"}, {"outcome": "regression"}], "regression"),
        ([{}, {}], "ok"),
        ([{}, {"status": "oom"}], "oom"),
        ([{"status": "oom"}, {"status": "failed"}], "failed"),
        ([{"suspect": ("throttled",)}], "suspect"),
    ],
)
def test_the_outcome_is_the_cases_own_else_how_its_runs_ended(kept, runs, outcome):
    assert only([kept(n, night_id="n", **run) for n, run in enumerate(runs)]).outcome == outcome


def test_a_series_has_the_settings_of_the_newest_run_and_shows_what_it_leaves_out(kept):
    records = [kept(0, fingerprint="aaaa"), kept(1, fingerprint="bbbb"), kept(2, fingerprint="bbbb")]
    series = series_of(records)
    assert (series.fingerprint, len(series.nights)) == ("bbbb", 2)
    (note,) = series.notes
    assert " 1 of 3 runs " in note and " --fingerprint aaaa " in note
    assert len(series_of(records, fingerprint="aa").nights) == 1


def test_an_unknown_fingerprint_gets_the_known_ones(kept):
    with pytest.raises(BadRequestError, match="known: 0123456789abcdef"):
        series_of([kept()], fingerprint="f")


def test_throughput_by_another_formula_is_no_figure_of_the_series_but_its_step_time_is(kept):
    old, new = series_of([kept(0, formula_version="model-flops-0"), kept(1)]).nights
    assert (old.value("tflops_per_gpu"), old.value("step_time_s")) == (None, 2.0)
    assert new.value("tflops_per_gpu") == 700.0


def test_what_changed_between_nights_is_named_software_first(kept):
    before = only([kept(0, environment={"NCCL_ALGO": "Ring"})])
    after = only(
        [kept(1, versions={"torch": "2.10.0", "megatron-core": "0.16.1"}, hostname="node1", git_commit="b" * 40,
              driver_version="570.1", environment={"NCCL_ALGO": "Tree"})]
    )  # fmt: skip
    assert [change_text(change) for change in changes(before, after)] == [
        "torch 2.9.1 -> 2.10.0",
        "driver 550.54.15 -> 570.1",
        "$NCCL_ALGO Ring -> Tree",
        "commit aaaa -> bbbbbbbbbb",
        "host node0 -> node1",
    ]
    assert [change.name for change in notable(changes(before, after))] == ["torch", "driver", "$NCCL_ALGO"]


def test_what_came_or_went_is_a_change_and_what_is_unknown_because_no_rank_ever_ran_is_none(kept):
    before, after = only([kept(0)]), only([kept(1, versions={"torch": "2.9.1"}, container="nemo:25.11")])
    assert [change_text(change) for change in changes(before, after)] == [
        "megatron-core 0.16.1 -> none",
        "container none -> nemo:25.11",
    ]
    never = only([kept(1, status="failed", versions={}, driver_version=None, device_name=None)])
    assert changes(before, never) == changes(never, before) == ()


def test_two_cases_of_a_suite_with_the_same_settings_are_two_points_of_one_night(kept):
    limited = kept(1, night_id="n", suite_case="limited", status="oom", outcome="oom")
    nights = nights_of([kept(0, night_id="n", suite_case="free", outcome="pass"), limited])
    assert [night.outcome for night in nights] == ["pass", "oom"]


def test_a_suites_name_means_its_case(kept):
    records = [kept(0, suite_case="free"), kept(1, suite_case="limited")]
    assert named_case("free", records) == named_case(records[0].case, records) == records[0].case


def series(num, *, seed, noise=0.01, steps=()):
    """Throughput with noise between nights; each of ``steps`` is (night, relative change of the level from it on)."""
    draw = random.Random(seed)
    level = [700.0 * (1 + sum(change for at, change in steps if night >= at)) for night in range(num)]
    return [value * (1 + draw.gauss(0, noise)) for value in level]


@pytest.mark.parametrize(
    ("factor", "better", "word"),
    [
        (0.94, "higher", "worse"),
        (1.06, "higher", "better"),
        (1.06, "lower", "worse"),
        (0.94, "lower", "better"),
        (0.94, "equal", "other"),
        (1.0, "higher", "steady"),
    ],
)
def test_a_change_beyond_noise_has_its_word_by_the_direction_of_the_figure(factor, better, word):
    assert trend([*series(20, seed=1), 700.0 * factor], better).word == word


def test_noise_alone_is_nearly_always_steady():
    words = [trend(series(21, seed=seed), "higher").word for seed in range(500)]
    assert 485 <= words.count("steady") <= 500


def test_the_level_is_that_of_the_newest_nights_since_the_last_step():
    newest = trend([*series(10, seed=2), *(value * 0.9 for value in series(10, seed=3)), 630.0], "higher")
    assert newest.level == pytest.approx(630.0, rel=0.01)
    assert newest.word == "steady"
    assert trend([1.0] * 50 + [700.0] * (LOOK_BACK + 1), "higher").level == 700.0


def test_few_nights_are_new_and_figures_without_noise_may_change_by_two_thousandths():
    assert trend([700.0, 500.0, 700.0], "higher") == trend([700.0], "higher") == Trend("new")
    assert trend([58e9] * 6 + [58.1e9], "lower").word == "steady"
    assert trend([58e9] * 6 + [58.2e9], "lower").word == "worse"


def test_a_planted_step_is_found_where_it_is():
    (point,) = change_points(series(30, seed=1, steps=((15, -0.05),)))
    assert point.index == 15
    assert point.fraction == pytest.approx(-0.05, abs=0.01)
    assert point.p_value < 1e-6


def test_steps_of_5_percent_in_1_percent_noise_are_found_in_all_of_forty_series():
    found = [change_points(series(30, seed=seed, steps=((15, -0.05),))) for seed in range(40)]
    assert [seed for seed, points in enumerate(found) if not any(abs(p.index - 15) <= 2 for p in points)] == []


def test_in_noise_alone_hardly_any_is_found():
    found = [len(change_points(series(60, seed=seed, noise=0.02))) for seed in range(60)]
    assert sum(found) <= 2


def test_two_steps_are_two_points_with_the_levels_between():
    first, second = change_points(series(60, seed=3, steps=((20, -0.06), (40, 0.06))))
    assert (first.index, second.index) == (20, 40)
    assert first.after == second.before


def test_figures_without_noise_show_every_step_but_none_in_the_newest_nights():
    assert change_points([58e9] * 20) == ()
    assert change_points([58e9] * 10 + [60e9] * 10) == (ChangePoint(10, 58e9, 60e9, 0.0),)
    assert change_points(series(30, seed=4, steps=((29, -0.2),))) == ()
    assert change_points([700.0, 600.0, 700.0]) == ()
