"""A night as Markdown, whole and within the limit of a CI job's summary."""

import re
from dataclasses import replace

import pytest

from harness.errors import ExitCode
from harness.nightly.reports import SUMMARY_LIMIT_BYTES, append_summary, night_markdown, night_summary

HOSTILE = "a|b\n# c <script>alert(1)</script> [x](http://y) `z` **d**"


def columns(line):
    return len(re.sub(r"\\.", "", line).split("|"))


@pytest.fixture(name="large")
def _large(make_night, night):
    """Thirty green cases and sixty red ones."""
    green, red = night.cases[0], night.cases[5]
    many = [(green, 30), (red, 60)]
    cases = [
        replace(case, planned=case.planned.model_copy(update={"name": f"{case.planned.name}_{i}"}), reason="é" * 4000)
        for case, number in many
        for i in range(number)
    ]
    return make_night(cases=tuple(cases))


def size_of(text):
    return len(text.encode("utf-8"))


def test_rows_have_as_many_cells_as_the_header_whatever_a_name_holds(make_night, make_case):
    case = make_case(
        HOSTILE, [], reason=HOSTILE, outcome="failed", exit_code=ExitCode.RUN_FAILED, planned={"owner": HOSTILE},
        remark=HOSTILE,
    )  # fmt: skip

    text = night_markdown(make_night(cases=(case,), plan={"title": HOSTILE}))

    assert {columns(line) for line in text.splitlines() if line.startswith("|")} == {9}
    assert not re.search(r"(?<!\\)[<>`\[]", text)
    assert [line[:3] for line in text.splitlines() if line.startswith("#")] == ["## ", "###", "###"]


def test_every_case_is_a_row_and_every_red_one_a_heading(night):
    text = night_markdown(night)

    assert len([line for line in text.splitlines() if line.startswith("|")]) == 2 + len(night.cases)
    assert text.count("\n#### ") == 6


def test_a_night_that_finds_room_is_whole(night):
    assert night_summary(night, SUMMARY_LIMIT_BYTES) == night_markdown(night)


def test_what_passed_is_left_out_first_then_the_details(large):
    whole = night_markdown(large)
    without_green = night_summary(large, size_of(whole) - 1)
    without_details = night_summary(large, size_of(without_green) - 1)

    assert "llama3\\_70b\\_none\\_0 " not in without_green
    assert (without_green.count("\n#### "), without_details.count("\n#### ")) == (60, 0)
    assert without_details.count("\n| llama3") == 60


@pytest.mark.parametrize("limit", [20_000, 3_000, 1_000, 300, 40, 0])
def test_a_summary_is_never_larger_than_what_is_left(large, limit):
    assert size_of(night_summary(large, limit)) <= limit


def test_the_last_thing_to_go_is_the_answer(large):
    assert night_summary(large, 200).startswith("**OOM (exit 4): look at ")


def test_a_summary_is_appended_and_keeps_below_the_limit_of_all_of_them(tmp_path, large):
    path = tmp_path / "summary.md"
    path.write_text("x" * (SUMMARY_LIMIT_BYTES - 60_000))

    append_summary(path, large)

    assert path.read_text().startswith("xxx")
    assert "Left out to save space" in path.read_text()
    assert path.stat().st_size <= SUMMARY_LIMIT_BYTES


def test_a_full_summary_is_left_as_it_is_and_reports_it(tmp_path, night):
    path = tmp_path / "summary.md"
    path.write_text("x" * SUMMARY_LIMIT_BYTES)

    with pytest.raises(OSError, match="as large as GitHub accepts"):
        append_summary(path, night)

    assert path.stat().st_size == SUMMARY_LIMIT_BYTES
