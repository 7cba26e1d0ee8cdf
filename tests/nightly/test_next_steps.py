"""A night names the command that gives an inconclusive case its verdict."""

from dataclasses import replace

from harness.errors import ExitCode
from harness.judge.gate import Verdict
from harness.nightly.outcome import figures_outcome
from harness.nightly.remarks import explanation, next_steps
from harness.nightly.words import answer
from harness.records.batches import BatchLaunch
from harness.records.golden import Difference
from tests.nightly.conftest import NIGHT, build_case, build_runs, changed

DRIVER = Difference("driver_version", "550.54.15", "570.86", blocks=True)
PROMOTE = f"mbr-perf golden promote results/nights/{NIGHT}"


def unsure(name, recompute="mlp", **changes):
    return build_case(
        name, build_runs([9.31, 9.36], recompute), outcome="inconclusive", exit_code=ExitCode.INCONCLUSIVE, **changes
    )


def on_another_driver(name, change=-0.004):
    case = unsure(name, change=change, drift=(DRIVER,))
    findings = (replace(f, verdict=Verdict.INCONCLUSIVE, reason=DRIVER.text, evidence=None) for f in case.findings)
    return changed(case, findings=tuple(findings))


def test_the_command_that_stores_goldens_names_the_cases_that_need_one(make_night, tmp_path):
    cases = (unsure("a", golden_path=None), on_another_driver("b"), unsure("c"))
    accept, promote = next_steps(make_night(cases=cases, plan={"golden_dir": str(tmp_path)}))
    assert accept.endswith("--accept_difference driver_version")
    assert promote.partition(PROMOTE)[2] == f" --case a --case b --golden_dir {tmp_path} --reason TEXT"


def test_no_step_that_would_be_refused_is_named(make_night):
    cases = (unsure("new", golden_path=None),)
    assert not tuple(next_steps(make_night(cases=cases, num_due=1)))
    assert not tuple(next_steps(make_night(cases=cases, plan={"launch": BatchLaunch(launcher="replay")})))


def test_a_reason_that_metrics_share_is_given_once():
    case = on_another_driver("mlp")
    outcome, reason = figures_outcome(case.findings[:2])
    assert outcome == "inconclusive"
    assert reason.count(DRIVER.text) == 1
    assert list(explanation(changed(case, reason=reason, drift=()))) == [reason]


def test_a_night_that_a_signal_ended_reports_it_with_its_exit_code(night):
    assert answer(night.model_copy(update={"exit_code": ExitCode.INTERRUPTED})).startswith("INTERRUPTED: ")
