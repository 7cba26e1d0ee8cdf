"""A night as a page, and the pages of its cases."""

from urllib.parse import unquote

import pytest

from harness.errors import ExitCode
from harness.history.store import history_file, write_history
from harness.nightly.reports import Outputs, night_html, write_night_reports
from tests.pages import Tags

HOSTILE = "x\"'><script>alert(1)</script>&#"


@pytest.fixture(name="kept")
def _kept(tmp_path, make_night, night, make_kept):
    """A night on disk with its reports, and two cases in history."""
    folder = tmp_path / "results" / "nights" / "20260101T020000Z-h100_nightly-0a1b2c3d"
    folder.mkdir(parents=True)
    records = [
        make_kept(number, run_id=f"{case}{number}", case=case)
        for case in ("h100/a.none", "h100/a.mlp")
        for number in range(3)
    ]
    write_history(tmp_path / "results", records)
    plan = {"night_id": folder.name, "suite": "h100_nightly", "started_at": "2026-01-01T02:00:00Z"}
    made = make_night(cases=night.cases, night_dir=folder, plan=plan)
    assert write_night_reports(made, Outputs(html=tmp_path / "html")).problems == ()
    return made


def test_the_page_needs_nothing_else(night):
    text = night_html(night)
    page = Tags(text)
    assert "default-src 'none'" in text
    assert not set(page.names) & {"img", "link", "iframe"}
    assert all(link.startswith("#") for link in page.all("href", "src"))


def test_every_case_of_the_table_leads_to_its_place(night):
    page = Tags(night_html(night))
    assert [unquote(link[1:]) for link in page.all("href", "src")] == [
        f"case-{case.planned.name}" for case in night.cases
    ]
    assert sorted(page.all("id")) == sorted(f"case-{case.planned.name}" for case in night.cases)


def hostile(make_case):
    """A red case and a green one, every text of which tries to be a script."""
    texts = {"reason": HOSTILE, "remark": HOSTILE}
    red = make_case(
        HOSTILE, [], outcome="failed", exit_code=ExitCode.RUN_FAILED, planned={"owner": HOSTILE}, **texts
    )  # fmt: skip
    return red, make_case(f"{HOSTILE} 2", [], planned={"owner": HOSTILE}, **texts)


def test_names_and_texts_cannot_become_markup(make_night, make_case):
    plan = {"title": HOSTILE, "suite": HOSTILE, "notes": (HOSTILE,)}
    page = Tags(night_html(make_night(cases=hostile(make_case), plan=plan)))
    assert page.names.count("script") == 1  # that of every page


def test_the_index_has_the_answer_and_links_all_nights_and_a_page_for_each_case(tmp_path, kept):
    folder, earlier = tmp_path / "html", "20251231T020000Z-h100_nightly-0a1b2c3d.html"
    (folder / earlier).touch()
    write_night_reports(kept, Outputs(html=folder))
    index = (folder / "index.html").read_text()
    links = [unquote(link) for link in Tags(index).all("href", "src")]
    assert links == [f"{kept.night_dir.name}.html", earlier, "h100.a.mlp.html", "h100.a.none.html"]
    assert '<p class="answer">FAILED in 3 of 9 cases' in index
    case = (folder / links[2]).read_text()
    assert case.count("<figure><svg") == 1
    assert [f">2026-01-0{day}T02:00Z<" in case for day in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_history_that_cannot_be_read_costs_no_other_report(tmp_path, kept):
    history_file(tmp_path / "results").write_text("no history")
    written = write_night_reports(kept, Outputs(html=tmp_path / "html", junit=tmp_path / "junit.xml"))
    assert (len(written.problems), tmp_path / "junit.xml" in written.paths) == (1, True)
