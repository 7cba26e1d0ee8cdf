"""`mbr-perf results`: list, show and archive; and `mbr-perf report`."""

import json
import re
import tarfile
from pathlib import Path

import pytest

from harness.launch.processes import claim
from harness.records.batches import SWEEP_FOLDERS
from harness.records.store import MEND_RECORD, write_record
from harness.records.sweep import run_dir_of


@pytest.fixture(name="results")
def _results(replay, tmp_path):
    """A results folder with a good run and one that ran out of memory."""
    assert replay("ok").code == 0
    assert replay("oom").code == 4
    return tmp_path / "results"


@pytest.fixture
def ask(mbr_perf, results):
    """Run a sub-command on that folder."""

    def run(*arguments):
        return mbr_perf("results", *arguments, "--results_dir", results)

    return run


@pytest.mark.slow
def test_the_list_has_every_run_with_its_outcome(ask, results):
    entries = json.loads(ask("list", "--json").out)["entries"]
    assert sorted(entry["state"] for entry in entries) == ["ok", "oom"]
    assert {entry["id"] for entry in entries} == {path.name for path in (results / "runs").iterdir()}
    assert all(entry["bytes"] > 1000 and entry["started_at"].startswith("20") for entry in entries)
    plain = ask("list").out
    assert all(entry["id"] in plain for entry in entries)
    assert " memory" in plain


def test_an_entry_is_shown_with_its_files(ask, results):
    run_dir = next((results / "runs").iterdir())
    document = json.loads(ask("show", run_dir.name[-8:], "--json").out)
    assert document["id"] == run_dir.name
    assert {"record.json", "spec.json", "plan.txt"} <= {file["path"] for file in document["files"]}
    assert sum(file["bytes"] for file in document["files"]) == document["bytes"]
    assert "record.json" in ask("show", run_dir).out


def test_a_committed_run_is_shown_with_its_metrics_and_without_a_process(ask, results):
    shown = {}
    for run_dir in (results / "runs").iterdir():
        assert json.loads(ask("show", run_dir, "--json").out)["process"] is None
        lines = ask("show", run_dir).out.splitlines()
        values = {line[:12].strip(): line[12:] for line in lines}
        assert "Process" not in values
        shown[values["State"].split(":")[0]] = values
    assert re.fullmatch(r"[\d.]+ m?s, median of \d+ steps", shown["ok"]["Step time"])
    assert re.fullmatch(r"[\d.]+ [MG]iB allocated, rank \d", shown["ok"]["Peak"])
    assert shown["oom"]["Peak"].startswith("at least ")


def test_a_run_without_a_record_is_shown_with_its_process_and_not_archived(ask, results, tmp_path):
    run_dir = results / "runs" / "20260102T030405Z-a-00000000"
    run_dir.mkdir()
    claim(run_dir)
    assert json.loads(ask("show", run_dir, "--json").out)["process"]["state"] == "alive"
    assert "at work" in ask("show", run_dir).out
    answer = ask("archive", run_dir.name, "-o", tmp_path / "run.tar.gz")
    assert (answer.code, "at work" in answer.err) == (2, True)


def test_a_sweep_is_shown_with_its_cells(mbr_perf, make_cell, make_record, make_spec, make_sweep, tmp_path):
    folder = SWEEP_FOLDERS.new_dir(tmp_path, "llama3_8b")
    ran = make_record(make_spec(gpu="cpu", recompute="none"), status="oom")
    sweep = make_sweep([make_cell("none", [ran]), make_cell("mlp", [], fate="pruned", reason="needs 90 GiB")])
    SWEEP_FOLDERS.write_plan(folder, sweep.plan)
    run_dir_of(folder, 0, 0).mkdir(parents=True)
    write_record(run_dir_of(folder, 0, 0), ran)
    document = json.loads(mbr_perf("results", "show", folder, "--json").out)
    assert [(cell["name"], cell["state"], len(cell["runs"])) for cell in document["cells"]] == [
        ("none", "oom", 1), ("mlp", "pruned", 0),
    ]  # fmt: skip
    shown = mbr_perf("results", "show", folder).out
    assert "needs 90 GiB" in shown
    assert "record.json" not in shown


def test_a_reference_to_nothing_exits_2(ask):
    answer = ask("show", "nothing")
    assert (answer.code, "'nothing'" in answer.err) == (2, True)


@pytest.mark.slow
def test_every_reader_of_a_damaged_record_says_what_to_do(mbr_perf, results):
    run_dir, own = next((results / "runs").iterdir()), ("--results_dir", results)
    readers = [("compare", run_dir, *own), ("explain", run_dir, *own), ("diagnose", run_dir),
               ("history", "add", run_dir, *own), ("results", "show", run_dir, *own)]  # fmt: skip
    for damage in ("{", '{"schema_version": 1}', '{"schema_version": 1, "colour": "red"}'):
        (run_dir / "record.json").write_text(damage)
        answers = {command[0]: mbr_perf(*command) for command in readers}
        assert {name: answer.code for name, answer in answers.items() if answer.code != 2} == {"results": 0}
        silent = [name for name, answer in answers.items() if MEND_RECORD not in answer.out + answer.err]
        assert silent == []


def test_an_archive_contains_the_run_and_nothing_about_this_machine(mbr_perf, results, tmp_path):
    run_dir = next((results / "runs").iterdir())
    target = tmp_path / "run.tar.gz"
    answer = mbr_perf("results", "archive", run_dir, "-o", target)  # by its path: the results folder is not named
    assert (answer.code, answer.out.startswith(f"{target}: ")) == (0, True)
    with tarfile.open(target) as tar:
        texts = {member.name: tar.extractfile(member).read().decode() for member in tar}
    assert f"{run_dir.name}/record.json" in texts
    assert not [name for name, text in texts.items() if str(results) in text or str(Path.home()) in text]
    assert json.loads(texts[f"{run_dir.name}/record.json"])["run_id"] == run_dir.name


RECORDED = Path(__file__).parents[1] / "data" / "sweeps" / "cpu_oom"


def test_the_report_is_written_to_the_given_folder(mbr_perf, tmp_path):
    answer = mbr_perf("report", RECORDED, "--out", tmp_path / "out", "-v")

    assert answer.code == 0
    names = ["memory_throughput.svg", "report.html", "report.json", "report.md"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert f"Report: {tmp_path / 'out' / 'report.json'}" in answer.out
    assert answer.out.startswith("Use full:uniform:1: ")


def test_json_is_one_document_with_the_paths(mbr_perf, tmp_path):
    answer = mbr_perf("report", RECORDED, "--out", tmp_path, "--json")
    document = json.loads(answer.out)

    assert document["recommended"] == "full:uniform:1"
    assert str(tmp_path / "report.json") in document["report"]
    assert json.loads((tmp_path / "report.json").read_text())["cells"] == document["cells"]


def test_for_a_run_the_message_names_results_show(mbr_perf, run, tmp_path):
    folder = run("20260102T030405Z-a")
    for reference in (folder, Path(folder).name):
        answer = mbr_perf("report", reference, "--results_dir", tmp_path / "results")
        assert answer.code == 2
        assert "is a run, not a sweep" in answer.err
        assert f"mbr-perf results show {folder}" in answer.err
