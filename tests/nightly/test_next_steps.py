"""A night names the command that gives an inconclusive case its verdict."""

from dataclasses import replace

from harness.errors import ExitCode
from harness.judge.gate import Verdict
from harness.nightly.outcome import figures_outcome
from harness.nightly.remarks import next_steps, story
from harness.nightly.words import answer
from harness.records.batches import BatchLaunch
from harness.records.golden import Difference
from tests.nightly.conftest import NIGHT, build_case, build_runs, changed

DRIVER = Difference("driver_version", "550.54.15", "570.86", blocks=True)
PROMOTE = f"mbr-perf golden promote results/nights/{NIGHT}"


def unsure(name, **changes):
    return build_case(
        name, build_runs([9.31, 9.36]), outcome="inconclusive", exit_code=ExitCode.INCONCLUSIVE, **changes
    )


def on_another_driver(name, change=-0.004):
    case = unsure(name, change=change, drift=(DRIVER,))
    findings = (replace(f, verdict=Verdict.INCONCLUSIVE, reason=DRIVER.text, evidence=None) for f in case.findings)
    return changed(case, findings=tuple(findings))


def test_every_case_is_chosen_at_once_for_the_goldens_of_the_night(make_night):
    cases = (unsure("a", golden_path=None), unsure("b", golden_path=None))
    (step,) = next_steps(make_night(cases=cases, plan={"golden_dir": "my goldens"}))
    assert step.endswith(f"{PROMOTE} --every --golden_dir 'my goldens' --reason TEXT")


def test_no_step_that_would_be_refused_is_named(make_night):
    cases = (unsure("new", golden_path=None),)
    assert not tuple(next_steps(make_night(cases=cases, num_due=1)))
    assert not tuple(next_steps(make_night(cases=cases, plan={"launch": BatchLaunch(launcher="replay")})))


def test_a_reason_that_metrics_share_is_given_once():
    case = on_another_driver("mlp")
    outcome, reason = figures_outcome(case.findings[:2])
    assert outcome == "inconclusive"
    assert reason.count(DRIVER.text) == 1
    assert [DRIVER.text in line for line in story(case).explanation] == [True]


def test_a_night_that_a_signal_ended_reports_it_with_its_exit_code(night):
    assert answer(night.model_copy(update={"exit_code": ExitCode.INTERRUPTED})).startswith("INTERRUPTED: ")
