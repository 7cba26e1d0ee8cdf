"""Reports of a sweep as their readers get them: terminal, Markdown, CSV, JSON, HTML."""

import json
import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from harness.records.sweep import SweepData, read_sweep
from harness.show.html import html
from harness.show.markup import as_markdown, markdown
from harness.show.page import visible
from harness.sweep.judge import judge_sweep
from harness.sweep.page import sweep_page
from harness.sweep.reports import write_reports
from tests.commands import json_of
from tests.pages import Tags

RECORDED = Path(__file__).parents[1] / "data" / "sweeps" / "cpu_oom"
HOSTILE = "=1+1 | `x` [bold]<script>alert(1)</script> </script>"


@pytest.fixture(name="recorded", scope="module")
def _recorded() -> SweepData:
    return read_sweep(RECORDED)


@pytest.fixture(name="hostile")
def _hostile(make_spec, make_record, make_cell, make_sweep) -> SweepData:
    """A sweep whose names and texts try to be markup, formulas and scripts."""
    run = make_record(make_spec(gpu="cpu", recompute="none"))
    failed = make_record(
        make_spec(gpu="cpu", recompute="mlp"), status="failed", failure=f"{HOSTILE}\nsecond line", ranks=()
    )
    cells = [make_cell("none", [run]), make_cell(HOSTILE, [failed])]
    return make_sweep(cells, title=HOSTILE, gpu="cpu", capacity_bytes=None, notes=(HOSTILE,))


def test_no_name_steers_the_terminal_that_prints_a_report(make_spec, make_record, make_cell, make_sweep):
    steering = "\x1b]0;x\x07\x9b2J\u202e"
    cells = [make_cell(name, [make_record(make_spec(gpu="cpu", recompute="none"))]) for name in ("none", steering)]
    verdict = judge_sweep(make_sweep(cells, title=steering, gpu="cpu", capacity_bytes=None, notes=(steering,)))

    for text in (markdown(sweep_page(verdict)), html(sweep_page(verdict))):
        assert r"\x9b2J\u202e" in text.replace("\\\\", "\\")
        assert visible(text) == text


def test_json_names_the_cell_in_place_of_the_control_and_has_the_metrics_of_a_run(recorded):
    from harness.judge.derive import derive

    document = json_of(judge_sweep(recorded))
    mlp = document["cells"][1]
    assert (document["control"], mlp["vs_control"], " none " in mlp["not_compared"]) == ("none", None, True)
    assert (document["reference"], mlp["vs_reference"]["time_change"] > 0) == ("full:uniform:1", True)
    assert mlp["metrics"] == json.loads(json.dumps(asdict(derive(recorded.cells[1].runs[0]))))


def test_markdown_rows_have_as_many_cells_as_the_header_whatever_a_name_holds(hostile):
    text = markdown(sweep_page(judge_sweep(hostile)))
    table = [re.sub(r"\\\|", "", line) for line in text.splitlines() if line.startswith("|")]

    assert len({line.count("|") for line in table}) == 1
    assert "<script>" not in text.replace("\\<script\\>", "")


@pytest.fixture(name="written", scope="module")
def _written(recorded, tmp_path_factory) -> Path:
    """The page of the recorded sweep, with report.md beside it."""
    return write_reports(judge_sweep(recorded), recorded, tmp_path_factory.mktemp("report"))[0]


class TestWithPictures:
    def test_the_page_fetches_nothing_is_small_and_has_one_title_and_a_labelled_picture(self, written):
        page = written.read_text(encoding="utf-8")
        tags = Tags(page)
        labels = [own.get("aria-label") for tag, own in tags.each if tag == "svg" and own.get("role") == "img"]
        levels = [int(tag[1]) for tag in tags.names if re.fullmatch("h[1-6]", tag)]

        assert all(link.endswith("/record.json") and ":" not in link for link in tags.all("href", "src"))
        assert written.stat().st_size < 60_000
        assert page.count("<figure><svg") == 1
        assert len(set(filter(None, labels))) == len(labels) == 1
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))
        assert {"header", "main", "footer"} <= set(tags.names)
        assert {own.get("scope") for tag, own in tags.each if tag == "th"} == {"col", "row"}

    def test_the_page_says_where_the_figures_come_from(self, recorded, written):
        where = recorded.cells[0].runs[0].provenance
        page = written.read_text(encoding="utf-8")

        for name, value in {
            "Hardware": where.processor, "torch": where.versions["torch"], "Host": where.hostname,
            "megatron-core": where.versions["megatron-core"], "mbr-perf": where.mbr_perf,
        }.items():  # fmt: skip
            assert f"<dt>{name}</dt><dd>{value}</dd>" in page
        commits = list(dict.fromkeys(run.provenance.git_commit for cell in recorded.cells for run in cell.runs))
        assert [commit.endswith("+") for commit in commits] == [True] * len(commits)
        shown = "[^;<]*; ".join(commit[:12] for commit in commits)
        assert re.search(f"<dt>git commit</dt><dd>{shown}[^;<]* changes</dd>", page)
        assert f"- Hardware: {as_markdown(where.processor)}" in written.with_name("report.md").read_text(
            encoding="utf-8"
        )

    def test_the_command_can_be_pasted_into_a_shell(self, make_spec, make_record, make_cell, make_sweep, tmp_path):
        command = ("/opt/x/harness/app.py", "sweep", "--over", "recompute=none; rm -rf $HOME")
        data = make_sweep(
            [make_cell("none", [make_record(make_spec(gpu="cpu", recompute="none"))])], gpu="cpu", command=command
        )
        path = write_reports(judge_sweep(data), data, tmp_path)[1]

        assert "\nmbr-perf sweep --over 'recompute=none; rm -rf $HOME'\n" in path.read_text(encoding="utf-8")

    def test_no_name_breaks_out_of_a_picture(self, make_spec, make_record, make_cell, make_sweep, tmp_path):
        names = ("\x1b[2J\u202e\x00", "]]></text></svg><script>alert(1)</script>", '"><img src=x onerror=alert(1)>')
        cells = [make_cell(name, [make_record(make_spec(gpu="cpu", recompute="none"))]) for name in ("none", *names)]
        data = make_sweep(cells, title=names[1], gpu="cpu", capacity_bytes=None)
        path = write_reports(judge_sweep(data), data, tmp_path)[0]
        page = path.read_text(encoding="utf-8")
        tags = Tags(page).names

        assert tags.count("script") == 1 and "img" not in tags
        assert visible(page) == page
        assert all("\x1b" not in drawn for drawn in page.split("<svg")[1:])

    def test_all_formats_lie_in_one_folder_and_pictures_are_svgs(self, recorded, tmp_path):
        paths = write_reports(judge_sweep(recorded), recorded, tmp_path)

        names = ["report.html", "report.md", "report.json", "memory_throughput.svg"]
        assert [path.name for path in paths] == names
        assert paths[3].read_text().startswith("<svg")
        assert "](memory_throughput.svg)" in paths[1].read_text(encoding="utf-8")
