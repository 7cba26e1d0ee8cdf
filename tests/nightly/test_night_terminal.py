"""A night at a terminal and in a pipe."""

import io
from dataclasses import replace

from harness.errors import ExitCode
from harness.judge.gate import Verdict
from harness.nightly.show import case_table, night_page
from harness.nightly.words import answer
from harness.show.terminal import Console, print_page
from tests.nightly.conftest import NIGHT, changed, improved


def printed(night, **console):
    out = io.StringIO()
    print_page(Console(file=out, highlight=False, **console), night_page(night))
    return out.getvalue()


def test_an_unfinished_night_shows_how_much_is_left(make_night, night):
    assert printed(make_night(cases=(night.cases[0],), num_due=3)).splitlines()[0] == (
        "PASS: no case needs attention; unfinished: 3 runs still to do"
    )


def test_the_memory_that_got_worse_is_the_one_in_the_table(make_night, night):
    case = night.cases[1]
    findings = tuple(
        replace(f, change=0.09, verdict=Verdict.REGRESSION) if f.metric == "peak_device_bytes" else f
        for f in case.findings
    )

    text = printed(make_night(cases=(changed(case, findings=findings),)))

    assert "59.60 GiB device used (+9.0 %)" in text
    calm = tuple(replace(f, verdict=Verdict.PASS) if f.metric == "tflops_per_gpu" else f for f in findings)
    assert "llama3_70b_mlp (Peak device used +9.0 %, allowed 5 %)" in answer(
        make_night(cases=(changed(case, findings=calm),))
    )


def test_a_night_over_midnight_names_both_days(make_night, night):
    lines = printed(make_night(cases=night.cases, plan={"started_at": "2026-01-02T23:30:00Z"})).splitlines()

    assert lines[3] == "h100_nightly; 2026-01-02 23:30 to 2026-01-03 05:41 UTC"
    assert printed(night).splitlines()[3] == "h100_nightly; 2026-01-03 02:00 to 05:41 UTC"


def test_the_run_to_look_at_is_the_one_that_went_wrong(make_night, make_case, night):
    good, bad = night.cases[1].counted[0], night.cases[5].runs[0].record
    case = make_case("mixed", [good, bad, good], outcome="oom", exit_code=ExitCode.OUT_OF_MEMORY)

    assert f"results show results/nights/{NIGHT}/cases/mixed/1" in printed(make_night(cases=(case,)))


def test_a_night_that_a_signal_ended_reports_it_with_its_exit_code(night):
    assert answer(changed(night, exit_code=ExitCode.INTERRUPTED)).startswith("INTERRUPTED: ")


def test_a_case_without_golden_whose_run_lacks_steps_has_a_remark():
    case = changed(improved(), golden_path=None)
    lacking = changed(case, metrics=replace(case.metrics, problems={"step_time_s": "2 of 4 steps are missing"}))
    (row,) = case_table([lacking]).rows
    assert "no golden; 2 of 4 steps are missing" in row[-1]
