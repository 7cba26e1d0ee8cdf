"""Goldens of a whole night: all are written or none, with every reason."""

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from harness.errors import BadRequestError
from harness.golden.promotions import night_candidates, prepare, promotions_page
from harness.judge.promotion import PromotionOptions
from harness.launch.processes import claim
from harness.records.night import ExpectedFailureRecord, NightCase, NightData, NightRun, PlannedCase, RefusedCase
from harness.show.page import LONGEST_ANSWER, plain
from tests.commands import piped, refused
from tests.nightly.night_recordings import plan_of

SIGNED = PromotionOptions("driver 570", "someone", datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC))
STEADY = (2.49, 2.5, 2.51)


@pytest.fixture(name="case")
def _case(tmp_path, make_spec, make_record):
    """A case with one run per step time; None is a run that was never committed."""

    def build(name, seconds=STEADY, recompute="core_attn", purposes=(), statuses=(), failures=(), **planned):
        spec = make_spec(recompute=recompute)
        kind = RefusedCase if "refused" in planned else PlannedCase
        planned = kind(**{"name": name, "spec": spec, "repeats": 3} | planned)
        runs = []
        for number, each in enumerate(seconds):
            changes = {"status": statuses[number], "failure": failures[number]} if statuses else {}
            record = (
                None if each is None else make_record(spec, seconds=each, run_id=f"night.{name}.{number}", **changes)
            )
            purpose = purposes[number] if purposes else "repeat"
            runs.append(NightRun(number, purpose, "", tmp_path / name / str(number), record))
        return NightCase(planned, tuple(runs))

    return build


def night_of(tmp_path, *cases):
    return NightData(tmp_path, plan_of(*(case.planned for case in cases)), cases, ())


def promotions(tmp_path, *cases, names=()):
    candidates, left_out = night_candidates(night_of(tmp_path, *cases), names, SIGNED)
    return prepare(candidates, tmp_path / "golden"), left_out


def problems(found):
    return {case.case: list(case.problems) for case in found.refused}


def test_keep_going_with_nothing_left_is_refused(tmp_path, case):
    found, _ = promotions(tmp_path, case("one", seconds=(2.5,)))
    with pytest.raises(BadRequestError, match="one: has 1 of 3 repeats"):
        found.require(keep_going=True)


def test_the_threshold_of_the_suite_limits_the_spread(tmp_path, case):
    unsteady = (2.44, 2.5, 2.56)
    assert problems(promotions(tmp_path, case("row", seconds=unsteady))[0]) == {}
    tight = case("tight", seconds=unsteady, thresholds={"tflops_per_gpu": 0.02})
    assert " 1 %" in problems(promotions(tmp_path, tight)[0])["tight"][0]


def test_an_expected_failure_is_skipped_by_every_and_refused_by_name(tmp_path, case):
    expected = ExpectedFailureRecord(outcome="oom", until="2026-12-31", reason="too big")
    known = case("known", (1.0,), statuses=("oom",), failures=("rank 0",), expected=expected)
    found, left_out = promotions(tmp_path, case("one"), known)
    ((name, why),) = [(each.case, each.reason) for each in left_out]
    assert name == "known" and re.fullmatch("oom, .* 2026-12-31: too big", why)
    assert [prepared.case for prepared in found.promoted] == ["one"]
    by_name, _ = promotions(tmp_path, known, names=("known",))
    assert "run night.known.0: ended as oom: rank 0" in problems(by_name)["known"]


def test_a_retry_replaces_the_run_that_a_machine_fault_ended(tmp_path, case):
    cured = case("one", (1.0, *STEADY), purposes=("repeat", "retry", "repeat", "repeat"),
                 statuses=("failed", "ok", "ok", "ok"), failures=("address already in use", *[None] * 3))  # fmt: skip
    found, _ = promotions(tmp_path, cured)
    assert found.promoted[0].golden.run_ids == ("night.one.1", "night.one.2", "night.one.3")


def test_a_run_without_a_record_and_a_refused_case_are_named(tmp_path, case):
    lost = case("lost", (2.5, 2.5, None))
    found, _ = promotions(tmp_path, lost, case("refused", (), refused="no such GPU", recompute="mlp"))
    assert [why[0].partition(" was ")[0] for why in problems(found).values()] == ["run 2", "was refused: no such GPU"]


def test_two_cases_with_the_same_golden_are_both_refused(tmp_path, case):
    found, _ = promotions(tmp_path, case("one"), case("twin"))
    assert ("one golden" in problems(found)["one"][0], found.promoted) == (True, ())


def test_an_unknown_case_is_refused_with_the_known_ones(tmp_path, case):
    refused(lambda: promotions(tmp_path, case("one"), names=("other",)), "--case other: ", " one")


def test_a_night_that_is_still_running_is_not_promoted(tmp_path, case):
    dense = case("dense")
    assert promotions(tmp_path, dense)[0].promoted
    claim(tmp_path)
    refused(lambda: promotions(tmp_path, dense), "nightly-0a1b2c3d: process ")


def test_a_reason_that_cases_share_is_given_once(tmp_path, case):
    night = case("dense"), case("moe", recompute="mlp"), case("full", recompute="none", seconds=(2.5, 2.5))
    candidates, _ = night_candidates(night_of(tmp_path, *night), (), replace(SIGNED, reason=" "))
    prepared = prepare(candidates, tmp_path / "golden")
    refused(
        lambda: prepared.require(keep_going=False), "dense, moe, full: --reason ", "full: has 2 of 3 repeats", num=2
    )


@pytest.mark.parametrize("count", [1, 5])
def test_line_1_holds_any_number_of_goldens_and_caveats_are_named_below(tmp_path, case, count):
    cases = [case(name, recompute=name) for name in ("core_attn", "mlp", "none", "layernorm", "full:uniform:1")[:count]]
    found, _ = promotions(tmp_path, *cases)
    caveats = {"caveats": (f"no time: {'too few steps ' * 12}",)}
    limited = [new.model_copy(update={"golden": new.golden.model_copy(update=caveats)}) for new in found.promoted]
    page = promotions_page(found.model_copy(update={"promoted": tuple(limited)}))
    assert len(plain(page.answer.words)) <= LONGEST_ANSWER
    lines = "\n".join(piped(page))
    assert [lines.count(f"Caveat of {new.path.stem}: ") for new in limited] == [1] * count
