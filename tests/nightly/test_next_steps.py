"""A night names the command that gives an inconclusive case its verdict."""

from dataclasses import replace

from harness.errors import ExitCode
from harness.judge.gate import Verdict
from harness.nightly.outcome import figures_outcome
from harness.nightly.remarks import explanation, next_steps
from harness.nightly.words import answer
from harness.records.batches import BatchLaunch
from harness.records.golden import Difference
from harness.records.goldens import write_golden
from tests.conftest import build_golden
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


def test_the_command_that_stores_goldens_has_the_options_with_which_it_is_not_refused(make_night, tmp_path):
    def step(*cases):
        (found,) = next_steps(make_night(cases=cases, plan={"golden_dir": str(tmp_path)}))
        return found.partition(PROMOTE)[2]

    first, second = (unsure(name, recompute, golden_path=None) for name, recompute in (("a", "mlp"), ("b", "none")))
    assert step(first, second) == f" --every --golden_dir {tmp_path} --reason TEXT"
    assert step(first, changed(first, planned=second.planned)).startswith(" --case a")  # they have one golden
    other = build_golden(record := first.counted[0], {"peak_allocated_bytes": 1}, fingerprint="0" * 16)
    write_golden(tmp_path, record.spec, other)
    noisy = changed(first, counted=tuple(build_runs([9.31, 9.36, 12.0])))
    assert step(noisy).endswith(" --replace_other --accept_spread --reason TEXT")


def test_no_step_that_would_be_refused_is_named(make_night):
    cases = (unsure("new", golden_path=None),)
    assert not tuple(next_steps(make_night(cases=cases, num_due=1)))
    assert not tuple(next_steps(make_night(cases=cases, plan={"launch": BatchLaunch(launcher="replay")})))


def test_a_reason_that_metrics_share_is_given_once():
    case = on_another_driver("mlp")
    outcome, reason = figures_outcome(case.findings[:2])
    assert outcome == "inconclusive"
    assert reason.count(DRIVER.text) == 1
    assert [DRIVER.text in line for line in explanation(case)] == [True]


def test_a_night_that_a_signal_ended_reports_it_with_its_exit_code(night):
    assert answer(night.model_copy(update={"exit_code": ExitCode.INTERRUPTED})).startswith("INTERRUPTED: ")
