"""A night as Markdown."""

import re

from harness.errors import ExitCode
from harness.nightly.reports import annotations, append_summary, night_markdown

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
    append_summary(night, path)
    first = path.read_text()
    append_summary(night, path)
    assert (first[:3], path.read_text()) == ("## ", f"{first}\n{first}")


def test_github_annotates_cases_that_need_attention_and_reads_no_command_from_their_texts(make_night, make_case):
    red, undecided = (
        make_case("a:b,c", [], outcome=outcome, exit_code=code, reason=reason)
        for outcome, code, reason in (
            ("regression", ExitCode.REGRESSION, "-8 %\r\n::stop-commands::x"),
            ("inconclusive", ExitCode.INCONCLUSIVE, "no golden: none"),
        )
    )
    assert list(annotations(make_night(cases=(red, make_case("good", []), undecided)))) == [
        "::error title=a%3Ab%2Cc%3A regression::-8 %25%0D%0A::stop-commands::x",
        "::warning title=a%3Ab%2Cc%3A inconclusive::no golden: none",
    ]
