"""A night as Markdown."""

import re

from harness.errors import ExitCode
from harness.nightly.reports import append_summary, night_markdown

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


def test_a_summary_is_appended_to_what_other_steps_wrote(tmp_path, night):
    path = tmp_path / "summary.md"
    append_summary(path, night)
    first = path.read_text()
    append_summary(path, night)
    assert (first[:3], path.read_text()) == ("## ", f"{first}\n{first}")
