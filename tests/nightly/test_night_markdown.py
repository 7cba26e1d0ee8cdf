"""A night as Markdown, whole and within the limit of a CI job's summary."""

import re

import pytest

from harness.errors import ExitCode
from harness.nightly.reports import SUMMARY_LIMIT_BYTES, append_summary, night_markdown

HOSTILE = "a|b\n# c <script>alert(1)</script> [x](http://y) `z` **d**"


def test_rows_have_as_many_cells_as_the_header_whatever_a_name_holds(make_night, make_case):
    case = make_case(
        HOSTILE, [], reason=HOSTILE, outcome="failed", exit_code=ExitCode.RUN_FAILED, planned={"owner": HOSTILE},
        remark=HOSTILE,
    )  # fmt: skip

    text = night_markdown(make_night(cases=(case,), plan={"title": HOSTILE}))

    assert {len(re.sub(r"\\.", "", line).split("|")) for line in text.splitlines() if line.startswith("|")} == {9}
    assert not re.search(r"(?<!\\)[<>`\[]", text)
    assert [line[:3] for line in text.splitlines() if line.startswith("#")] == ["## ", "###", "###"]


@pytest.mark.parametrize(("room", "begins"), [(60_000, "## "), (1_000, "**FAILED in 3 of 9 cases: ")])
def test_a_summary_is_appended_whole_or_as_its_answer(tmp_path, night, room, begins):
    path = tmp_path / "summary.md"
    path.write_text("x" * (SUMMARY_LIMIT_BYTES - room))

    append_summary(path, night)

    assert path.read_text().lstrip("x").lstrip("\n").startswith(begins)
    assert path.stat().st_size <= SUMMARY_LIMIT_BYTES


def test_a_full_summary_is_left_as_it_is_and_reports_it(tmp_path, night):
    path = tmp_path / "summary.md"
    path.write_text("x" * SUMMARY_LIMIT_BYTES)

    with pytest.raises(OSError, match="as large as GitHub accepts"):
        append_summary(path, night)

    assert path.stat().st_size == SUMMARY_LIMIT_BYTES
