"""Reports of a night as files."""

import json
import re
from pathlib import Path

import pytest

from harness.errors import BadRequestError, ExitCode
from harness.nightly.reports import Outputs, require_outputs, write_night_reports
from harness.show.page import visible


def test_the_night_keeps_every_report_in_its_own_folder(written_night):
    written = write_night_reports(written_night)
    folder = written_night.night_dir / "report"
    assert [path.relative_to(folder).name for path in written.paths] == [
        "night.json", "night.md", "night.html", "junit.xml",
    ]  # fmt: skip
    assert written.problems == ()
    assert json.loads((folder / "night.json").read_text())["outcome"] == "failed"


def test_no_name_steers_the_terminal_that_prints_a_report(make_night, make_case, tmp_path):
    hostile = "\x1b]0;x\x07\x9b2J\u202e"
    texts = {"reason": hostile, "remark": hostile, "planned": {"owner": hostile}}
    red = make_case(hostile, [], outcome="failed", exit_code=ExitCode.RUN_FAILED, **texts)
    plan = {"title": hostile, "suite": hostile, "notes": (hostile,)}
    night = make_night(
        cases=(red, make_case(f"{hostile} 2", [], **texts)), plan=plan, night_dir=tmp_path / f"n{hostile}"
    )
    written = write_night_reports(night)
    assert written.problems == ()
    pages = {path.suffix: path.read_text() for path in written.paths}
    for kind in (".md", ".html", ".xml"):
        assert visible(pages[kind]) == pages[kind], kind
    assert not re.search("[\x00-\x08\x1b]", pages[".json"])


def test_what_cannot_be_written_is_reported_and_keeps_nothing_else_from_being_written(written_night, tmp_path):
    (tmp_path / "file").write_text("in the way")
    outputs = Outputs(junit=tmp_path / "file" / "junit.xml", step_summary=tmp_path / "all.md")
    written = write_night_reports(written_night, outputs)
    assert [problem.split(": ")[0] for problem in written.problems] == [str(tmp_path / "file" / "junit.xml")]
    assert (tmp_path / "all.md") in written.paths


def test_places_in_which_nothing_can_be_made_are_reported_and_nothing_is_left_in_the_others(tmp_path):
    with pytest.raises(BadRequestError) as refused:
        require_outputs(Outputs(junit=Path("/proc/x"), html=Path("/proc/y/z"), step_summary=Path("/dev/null")))
    assert [line.split(": ")[0] for line in str(refused.value).splitlines() if line.startswith("--")] == [
        "--junit /proc/x",
        "--html /proc/y/z",
    ]
    assert list(tmp_path.iterdir()) == []
