"""A night as a page, and all nights as one."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from harness.errors import ExitCode
from harness.nightly.index import index_html, read_nights, write_index
from harness.nightly.reports import night_html, write_night_reports

HOSTILE = "x\"'><script>alert(1)</script>&#"
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tags, links, anchors and cells of a page; fails on tags that do not close in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.ids, self.cells, self._open = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag == "td":
            self.cells.append([dict(attrs).get("class"), ""])
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "td" in self._open:
            self.cells[-1][1] += data


@pytest.fixture(name="nights")
def _nights(tmp_path, make_night, night):
    """Three nights on disk with their reports: a red one, a green one, and one of another suite."""
    root = tmp_path / "results" / "nights"
    green = (night.cases[0], night.cases[6])
    made = []
    for day, suite, cases in ((1, "h100_nightly", night.cases), (2, "h100_nightly", green), (3, "cpu_smoke", green)):
        folder = root / f"2026010{day}T020000Z-{suite}-0a1b2c3d"
        folder.mkdir(parents=True)
        plan = {"night_id": folder.name, "suite": suite, "started_at": f"2026-01-0{day}T02:00:00Z"}
        made.append(make_night(cases=cases, night_dir=folder, plan=plan))
        (folder / "night.json").write_text(made[-1].plan.model_dump_json())
        write_night_reports(made[-1])
    return made


def test_the_page_needs_nothing_else(night):
    text = night_html(night)
    page = Page(text)

    assert "default-src 'none'" in text
    assert not set(page.tags) & {"script", "img", "link", "iframe"}
    assert all(link.startswith("#") for link in page.links)


def test_every_case_of_the_table_leads_to_its_place(night):
    page = Page(night_html(night))

    assert [unquote(link[1:]) for link in page.links] == [f"case-{case.planned.name}" for case in night.cases]
    assert sorted(page.ids) == sorted(f"case-{case.planned.name}" for case in night.cases)


def hostile(make_case):
    """A red case and a green one, every text of which tries to be a script."""
    texts = {"reason": HOSTILE, "remark": HOSTILE}
    red = make_case(
        HOSTILE, [], outcome="failed", exit_code=ExitCode.RUN_FAILED, planned={"owner": HOSTILE}, **texts
    )  # fmt: skip
    return red, make_case(f"{HOSTILE} 2", [], planned={"owner": HOSTILE}, **texts)


def test_names_and_texts_cannot_become_markup(make_night, make_case):
    plan = {"title": HOSTILE, "suite": HOSTILE, "notes": (HOSTILE,)}

    page = Page(night_html(make_night(cases=hostile(make_case), plan=plan)))

    assert "script" not in page.tags


def test_the_index_has_a_row_per_night_newest_first_and_links_that_lead_somewhere(tmp_path, nights):
    folder = tmp_path / "html"

    write_index(nights[0].night_dir.parent, folder)

    text = (folder / "index.html").read_text()
    pages = [link.partition("#") for link in Page(text).links]
    assert list(dict.fromkeys(page for page, _, _ in pages)) == [
        f"{night.night_dir.name}.html" for night in reversed(nights)
    ]
    for page, _, fragment in pages:
        there = (folder / unquote(page)).read_text()
        assert not fragment or unquote(fragment) in Page(there).ids
    assert text.index("cpu_smoke") < text.index("h100_nightly")


def test_a_column_is_a_case_and_a_cell_without_it_is_empty(nights):
    h100 = index_html(read_nights(nights[0].night_dir.parent)).partition("<h2>h100_nightly</h2>")[2]

    assert re.findall(r"<th[^>]*>([^<]*)</th>", h100)[:4] == ["Night", "Outcome", "llama3_70b_none", "llama3_8b_full"]
    green, red = h100.split("<tr>")[2:4]
    assert (green.count('<td class="left"></td>'), red.count('<td class="left"></td>')) == (7, 0)
    assert "▼ regression</a><br><small>175.31 (-3.4 %), 54.02 GiB</small>" in red


def test_the_page_names_machine_software_and_command(nights):
    text = (nights[0].night_dir / "report" / "night.html").read_text()

    for name, value in {
        "Hardware": "NVIDIA H100 80GB HBM3; A Processor",
        "Driver": "550.54.15",
        "torch": "2.9.1",
    }.items():
        assert f"<dt>{name}</dt><dd>{value}" in text
    assert "<pre>mbr-perf nightly h100_nightly</pre>" in text


def test_the_page_links_runs_and_the_copy_beside_the_index_does_not(tmp_path, nights, night):
    folder = nights[1].night_dir / "cases" / "a b" / "0"
    (folder / "logs").mkdir(parents=True)
    files = [folder / "record.json", folder / "logs" / "launcher.log"]
    for path in files:
        path.touch()
    case = replace(night.cases[0], runs=(replace(night.cases[0].runs[0], run_dir=folder),))
    write_night_reports(replace(nights[1], cases=(case,)))
    page = nights[1].night_dir / "report" / "night.html"
    write_index(nights[0].night_dir.parent, tmp_path / "html")
    copy = Page((tmp_path / "html" / f"{nights[1].night_dir.name}.html").read_text())

    linked = [unquote(link) for link in Page(page.read_text()).links if not link.startswith("#")]
    assert [(page.parent / link).resolve() for link in linked] == files
    assert all(link.startswith("#") for link in copy.links)


@pytest.mark.parametrize("content", ['{"suite": "x', "[]", '{"suite": "x"}', "\0\0"])
def test_a_damaged_night_is_shown_as_such_and_hides_no_other(nights, content):
    (nights[1].night_dir / "report" / "night.json").write_text(content)

    text = index_html(read_nights(nights[0].night_dir.parent))

    name = nights[1].night_dir.name
    assert f'<a href="{name}.html">{name}</a>: damaged: report/night.json: ' in text
    assert text.count("▼ regression") > 0


def test_a_night_that_is_still_running_is_no_damaged_one(nights):
    running = nights[0].night_dir.parent / "20260104T020000Z-h100_nightly-0a1b2c3d"
    running.mkdir()
    (running / "night.json").write_text("{}")

    assert f"{running.name}: not judged: it is still running" in index_html(read_nights(running.parent))
