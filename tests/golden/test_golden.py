"""Promotions by command: of runs, and beside damaged goldens."""

import json
import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from harness.errors import BadRequestError
from harness.golden.ask import app
from harness.records.goldens import read_golden
from tests.nightly.night_recordings import Stage

NAME = "h100/llama3_70b.sft.fp8_cs.32gpu.core_attn.json"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def promote(tmp_path, *arguments):
    return invoke("promote", *arguments, "--golden_dir", tmp_path / "golden", "--author", "someone")


def test_a_promotion_writes_the_golden_and_prints_before_after_and_what_changed_with_it(tmp_path, run):
    assert promote(tmp_path, run("a"), "--reason", "first").exit_code == 0
    changed = run("b", seconds=2.0, provenance={"driver_version": "570.1"})
    done = promote(tmp_path, changed, "--reason", "faster kernels")
    golden = read_golden(tmp_path / "golden" / NAME)
    assert done.exit_code == 0
    assert (golden.metrics["step_time_s"].value, golden.run_ids, golden.reason) == (2.0, ("b",), "faster kernels")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["Step", "time", "2.500", "s", "2.000", "s", "-20.0", "%"] in rows
    assert [
        ["Reason:", "faster", "kernels"] in rows,
        ["Differs:", "driver_version:", "550.54.15", "->", "570.1"] in rows,
    ] == [True, True]
    assert NAME in done.stdout


def test_repeats_are_promoted_together(tmp_path, run):
    runs = [run(name, seconds) for name, seconds in (("a", 2.46), ("b", 2.5), ("c", 2.54))]
    done = promote(tmp_path, *runs, "--reason", "three runs", "--json")
    document = json.loads(done.stdout)
    assert document["golden"]["num_runs"] == 3
    assert document["golden"]["metrics"]["step_time_s"] == {"value": 2.5, "relative_spread": 0.016, "note": None}


def test_a_refused_promotion_leaves_the_old_golden(tmp_path, run):
    promote(tmp_path, run("a"), "--reason", "first")
    before = (tmp_path / "golden" / NAME).read_text()
    done = promote(tmp_path, run("b", suspect=("GPU 0 was throttled",)), "--reason", "second")
    assert isinstance(done.exception, BadRequestError)
    assert "run b: suspect: GPU 0 was throttled" in str(done.exception)
    assert (tmp_path / "golden" / NAME).read_text() == before


def test_the_author_is_gits_user(tmp_path, run, monkeypatch):
    git = shutil.which("git")
    assert git
    subprocess.run([git, "init", "-q", tmp_path], check=True)
    subprocess.run([git, "-C", tmp_path, "config", "user.name", "A Committer"], check=True)
    monkeypatch.chdir(tmp_path)
    invoke("promote", run("a"), "--reason", "first", "--golden_dir", tmp_path / "golden")
    assert read_golden(tmp_path / "golden" / NAME).promoted_by == "A Committer"


@pytest.fixture(name="stage")
def _stage(tmp_path, mbr_perf):
    """A suite of one case with an optional golden, measured once and promoted; the night replays it."""
    made = Stage(tmp_path, {"dense": "golden: optional"})
    made.record("dense", 0)
    mbr_perf(*made.arguments())
    made.promote("dense")
    return made


def golden_of(stage):
    (path,) = stage.goldens.glob("*/*.json")
    return path


def value_as(stage, text):
    """Replace the golden's throughput with the text; return its line."""
    path = golden_of(stage)
    throughput = json.loads(path.read_text())["metrics"]["tflops_per_gpu"]["value"]
    path.write_text(path.read_text().replace(f'"value": {throughput}', f'"value": {text}'))
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if f'"value": {text}' in line)


@pytest.mark.slow
def test_a_night_with_a_damaged_golden_is_inconclusive_even_if_none_is_required(stage, mbr_perf):
    line = value_as(stage, "NaN")
    answer = mbr_perf(*stage.arguments("--json"))
    case = json.loads(answer.out)["cases"][0]
    assert (answer.code, case["outcome"]) == (6, "inconclusive")
    assert f"{golden_of(stage)}:{line}: metrics.tflops_per_gpu.value: " in case["reason"]
    shown = mbr_perf(*stage.arguments())
    assert "no golden" not in shown.out


def test_the_list_of_goldens_names_the_damaged_one_and_lists_the_others(stage, mbr_perf):
    whole = golden_of(stage)
    damaged = whole.with_name("other.json")
    damaged.write_text(whole.read_text()[:100])
    shown = mbr_perf("golden", "list", "--golden_dir", stage.goldens)
    assert shown.code == 6
    assert f"{whole.parent.name}/{whole.name}" in shown.out
    assert f": {damaged}:" in shown.out
    document = json.loads(mbr_perf("golden", "list", "--golden_dir", stage.goldens, "--json").out)
    assert [row["path"] for row in document["goldens"]] == [str(whole)]
    assert [row["path"] for row in document["damaged"]] == [str(damaged)]
