"""`mbr-perf report`: judges a recorded sweep again and writes its reports."""

import json
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "data" / "sweeps" / "cpu_oom"


def test_the_chosen_formats_are_written_to_the_given_folder(mbr_perf, tmp_path):
    answer = mbr_perf("report", RECORDED, "--format", "json,md", "--out", tmp_path / "out", "-v")

    assert answer.code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.json", "report.md"]
    assert f"Report: {tmp_path / 'out' / 'report.json'}" in answer.out
    assert answer.out.startswith("Use full:uniform:1: ")


def test_json_is_one_document_with_the_paths(mbr_perf, tmp_path):
    answer = mbr_perf("report", RECORDED, "--format", "json", "--out", tmp_path, "--json")
    document = json.loads(answer.out)

    assert document["recommended"] == "full:uniform:1"
    assert document["report"] == [str(tmp_path / "report.json")]
    assert json.loads((tmp_path / "report.json").read_text())["cells"] == document["cells"]


def test_an_unknown_format_exits_2_with_the_known_ones(mbr_perf, tmp_path):
    answer = mbr_perf("report", RECORDED, "--format", "md,pdf", "--out", tmp_path / "out")

    assert answer.code == 2
    assert " pdf\n" in answer.err and "html, md, json, svg" in answer.err
    assert not (tmp_path / "out").exists()


def test_for_a_run_the_message_names_results_show(mbr_perf, run, tmp_path):
    folder = run("20260102T030405Z-a")
    for reference in (folder, Path(folder).name):
        answer = mbr_perf("report", reference, "--results_dir", tmp_path / "results")
        assert answer.code == 2
        assert "is a run, not a sweep" in answer.err
        assert f"mbr-perf results show {folder}" in answer.err
