"""A night at a terminal and in a pipe."""

import io
from dataclasses import replace

from harness.errors import ExitCode
from harness.judge.gate import Verdict
from harness.nightly.show import case_table, night_page
from harness.nightly.values import Evidence
from harness.nightly.words import answer, change_text
from harness.show.terminal import Console, print_page
from tests.nightly.conftest import improved

HOSTILE = "[bold]x[/] | <script>alert(1)</script>"


def printed(night, **console):
    out = io.StringIO()
    print_page(Console(file=out, highlight=False, **console), night_page(night))
    return out.getvalue()


def test_the_piped_table_is_never_cut(night):
    row = next(line for line in printed(night, width=40).splitlines() if line.startswith("llama3_70b_mlp "))

    assert row.split("  ")[0] == "llama3_70b_mlp"
    assert "-3.4 %  p 2e-5, 7 runs, golden 5" in row
    assert row.endswith("1 difference from the golden's environment")


def test_the_cases_keep_the_order_of_the_plan(night):
    names = [case.planned.name for case in night.cases]
    rows = [line.split()[0] for line in printed(night).splitlines() if line.split()[:1] and line.split()[0] in names]

    assert rows == names


def test_the_last_line_alone_shows_the_outcome_and_names_the_worst_first(night):
    assert printed(night).splitlines()[-1] == (
        "FAILED (exit 3): look at llama3_70b_4nodes, deepseek_v3, qwen3_typo, llama3_8b_none, llama3_70b_mlp (TFLOP/s/GPU -3.4 %) and 1 more; "
        "changed by more than the threshold: llama3_70b_core (+6.1 %)"
    )


def test_each_red_case_is_reported_once_more_and_no_other(night):
    titles = [line.split(":")[0] for line in printed(night).splitlines() if line[:1] not in (" ", "") and ": " in line]
    red = ["llama3_70b_mlp", "llama3_8b_throttled", "llama3_70b_4nodes", "llama3_8b_none", "deepseek_v3", "qwen3_typo"]

    assert [name for name in titles if name in {case.planned.name for case in night.cases}] == red


def test_a_red_case_shows_its_reason_its_owner_and_the_next_command(night):
    text = printed(night)
    paragraph = text[text.index("llama3_70b_mlp: regression") : text.index("llama3_8b_throttled: inconclusive")]

    assert "(owner: perf-team)" in paragraph
    assert (
        "TFLOP/s/GPU 175.31, golden 181.48: -3.4 %, p 2e-5, 7 runs, golden 5; threshold 5 %, or 2 % with evidence; "
        "one run varies by 0.93 % (these repeats, the golden's, 19 nights)" in paragraph
    )
    assert "torch: golden 2.9.1, here 2.10.0" in paragraph
    assert "confirm ok (suspected regression of tflops_per_gpu): " in paragraph
    assert "cases/llama3_70b_mlp/{0,1,2,3,4}" in paragraph
    assert "mbr-perf explain results/nights/20260103T020000Z-h100_nightly-0a1b2c3d/cases/llama3_70b_mlp/6 results/golden/" in paragraph  # fmt: skip


def test_an_expected_failure_is_marked_and_needs_no_look(night):
    row = next(line for line in printed(night).splitlines() if line.startswith("llama3_8b_full"))

    assert "oom (expected)" in row
    assert "expected until 2026-02-01: does not fit before the new allocator" in row


def test_a_night_without_a_problem_reports_it(make_night, night):
    text = printed(make_night(cases=(night.cases[0],)))

    assert text.splitlines()[-1] == "PASS (exit 0): no case needs attention"


def test_an_unfinished_night_shows_how_much_is_left(make_night, night):
    assert printed(make_night(cases=(night.cases[0],), num_due=3)).splitlines()[-1] == (
        "PASS (exit 0): no case needs attention; unfinished: 3 runs still to do"
    )


def test_markup_in_names_is_printed_as_it_stands(make_night, make_case):
    assert HOSTILE in printed(make_night(cases=(make_case(HOSTILE, []),), plan={"title": HOSTILE}))


def test_no_color_leaves_no_escape_codes(night, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    assert "\x1b[3" not in printed(night, force_terminal=True, width=200)


def test_what_no_test_can_show_has_no_p_value(night):
    finding = next(f for f in night.cases[1].findings if f.metric == "tflops_per_gpu")

    assert change_text(replace(finding, evidence=Evidence(None, None, "", 1, 1))) == "-3.4 %, 1 run, golden 1"


def test_a_p_value_too_small_to_mean_anything_is_bounded(night):
    finding = next(f for f in night.cases[1].findings if f.metric == "tflops_per_gpu")

    assert (
        change_text(replace(finding, evidence=Evidence(1e-30, 0.01, "", 5, 5))) == "-3.4 %, p < 1e-9, 5 runs, golden 5"
    )


def test_the_memory_that_got_worse_is_the_one_in_the_table(make_night, night):
    case = night.cases[1]
    findings = tuple(
        replace(f, change=0.09, verdict=Verdict.REGRESSION) if f.metric == "peak_device_bytes" else f
        for f in case.findings
    )

    text = printed(make_night(cases=(replace(case, findings=findings),)))

    assert "59.60 GiB device used (+9.0 %)" in text


def test_a_night_over_midnight_names_both_days(make_night, night):
    lines = printed(make_night(cases=night.cases, plan={"started_at": "2026-01-02T23:30:00Z"})).splitlines()

    assert lines[1] == "h100_nightly; 2026-01-02 23:30 to 2026-01-03 05:41 UTC"
    assert printed(night).splitlines()[1] == "h100_nightly; 2026-01-03 02:00 to 05:41 UTC"


def test_the_run_to_look_at_is_the_one_that_went_wrong(make_night, make_case, night):
    good, bad = night.cases[1].counted[0], night.cases[5].runs[0].record
    case = make_case("mixed", [good, bad, good], outcome="oom", exit_code=ExitCode.OUT_OF_MEMORY)

    assert "results show results/nights/20260103T020000Z-h100_nightly-0a1b2c3d/cases/mixed/1" in printed(
        make_night(cases=(case,))
    )


def test_a_small_screen_gets_fewer_columns_instead_of_folded_names(night):
    lines = printed(night, force_terminal=True, no_color=True, color_system=None, width=100).splitlines()
    row = next(line for line in lines if line.startswith("llama3_8b_throttled"))

    assert row.split("  ")[0] == "llama3_8b_throttled"
    assert "llama3_8b_full: expected until 2026-02-01: does not fit before the new allocator" in lines


def test_a_command_to_copy_is_not_broken_at_a_terminal(night):
    lines = printed(night, force_terminal=True, no_color=True, color_system=None, width=80).splitlines()
    command = next(line for line in lines if "mbr-perf explain" in line)

    assert command.endswith("llama3_70b_mlp/6 results/golden/h100/llama3_70b.sft.fp8_cs.32gpu.mlp.json")


def test_a_remark_names_the_metric_that_is_better_than_its_golden():
    (row,) = case_table([improved()]).rows
    assert "TFLOP/s/GPU better than its golden" in row[-1]


def test_a_night_that_a_signal_ended_reports_it_with_its_exit_code(night):
    assert answer(replace(night, exit_code=ExitCode.INTERRUPTED)).startswith("INTERRUPTED (exit 130): ")


def test_a_case_without_golden_whose_run_lacks_steps_has_a_remark():
    case = replace(improved(), golden_path=None)
    lacking = replace(case, metrics=replace(case.metrics, problems={"step_time_s": "2 of 4 steps are missing"}))
    (row,) = case_table([lacking]).rows
    assert "no golden; 2 of 4 steps are missing" in row[-1]


def test_a_narrow_terminal_names_the_columns_without_room(make_night, night):
    lines = printed(make_night(cases=(night.cases[0],)), force_terminal=True, color_system=None, width=60).splitlines()
    assert "Not shown at this width: Golden, Evidence, Peak memory" in lines
