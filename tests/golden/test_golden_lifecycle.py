"""`mbr-perf golden`: a night's promotion, and what it shows."""

import json
import re

import pytest

from harness.records.batches import NIGHT_FOLDERS, append_event
from harness.records.goldens import read_golden
from harness.records.night import NightEvent, PlannedCase, run_dir_of
from harness.records.references import run_id_of
from harness.records.store import write_record
from tests.nightly.night_recordings import plan_of

NAME = "h100/llama3_70b.sft.fp8_cs.32gpu.core_attn"
NIGHT = "20260104T000000Z-suite-0a1b2c3d"


@pytest.fixture(name="golden")
def _golden(mbr_perf, tmp_path):
    """Run `mbr-perf golden` on folders of this test."""

    def run(command, *arguments):
        where = ["--golden_dir", tmp_path / "golden"]
        if command == "promote":
            where += ["--author", "someone", "--results_dir", tmp_path / "results"]
        return mbr_perf("golden", command, *arguments, *where)

    return run


@pytest.fixture(name="night")
def _night(tmp_path, make_spec, make_record):
    """A night of two cases; ``second``: the step times of the second."""

    def write(second=(2.6, 2.61, 2.62)):
        specs = {"attention": make_spec(), "mlp": make_spec(recompute="mlp")}
        cases = (PlannedCase(name=name, spec=spec, repeats=3) for name, spec in specs.items())
        plan = plan_of(*cases, night_id=NIGHT)
        folder = tmp_path / "results" / "nights" / NIGHT
        folder.mkdir(parents=True)
        NIGHT_FOLDERS.write_plan(folder, plan)
        for name, seconds in (("attention", (2.49, 2.5, 2.51)), ("mlp", second)):
            for number, each in enumerate(seconds):
                append_event(folder, NightEvent(time="x", kind="started", case=name, number=number, purpose="repeat"))
                run_dir_of(folder, name, number).mkdir(parents=True)
                record = make_record(specs[name], seconds=each, run_id=run_id_of(NIGHT, name, number))
                write_record(run_dir_of(folder, name, number), record)
        return folder

    return write


def written(tmp_path):
    return sorted(path.name for path in (tmp_path / "golden").glob("*/*.json"))


def test_a_night_is_promoted_in_one_command(golden, night, tmp_path):
    night()
    done = golden("promote", NIGHT, "--every", "--reason", "driver 570", "--json")
    document = json.loads(done.out)
    assert (done.code, [row["case"] for row in document["promoted"]]) == (0, ["attention", "mlp"])
    assert len(written(tmp_path)) == 2
    assert document["promoted"][0]["golden"]["night_id"] == NIGHT


def test_if_a_case_is_refused_nothing_is_written(golden, night, tmp_path):
    folder = night(second=(2.3, 2.6, 2.9))
    done = golden("promote", folder, "--every", "--reason", "new")
    assert (done.code, written(tmp_path)) == (2, [])
    assert "mlp: tflops_per_gpu: 3 runs " in done.err
    kept = golden("promote", folder, "--every", "--reason", "new", "--keep_going")
    assert (kept.code, written(tmp_path)) == (0, ["llama3_70b.sft.fp8_cs.32gpu.core_attn.json"])
    assert "Not promoted: mlp: tflops_per_gpu: 3 runs " in kept.out


@pytest.mark.parametrize("by_id", [True, False])
def test_a_night_without_chosen_cases_is_refused(golden, night, by_id):
    folder = night()
    done = golden("promote", NIGHT if by_id else folder, "--reason", "new")
    assert (done.code, "--case" in done.err, "--every" in done.err) == (2, True, True)


def test_a_dry_run_prints_the_change_and_writes_nothing(golden, run, tmp_path):
    done = golden("promote", run("a"), "--reason", "first", "--dryrun")
    assert (done.code, written(tmp_path)) == (0, [])
    assert "Not written: " in done.out


def test_a_damaged_golden_can_be_promoted_again(golden, run, tmp_path):
    path = tmp_path / "golden" / f"{NAME}.json"
    assert golden("promote", run("a"), "--reason", "first").code == 0
    path.write_text(path.read_text().replace('"num_runs": 1', '"num_runs": 2'))
    assert golden("show", path).code == 2
    assert golden("promote", run("b"), "--reason", "again").code == 0
    assert read_golden(path).reason == "again"


def test_a_golden_contains_no_secret_of_reason_or_author(mbr_perf, run, tmp_path):
    folder = tmp_path / "golden"
    options = ("--reason", "as in https://me:hunter2@hub/x", "--author", "me hf_hunter2hunter2", "--golden_dir", folder)
    done = mbr_perf("golden", "promote", run("a"), *options)
    (path,) = folder.rglob("*.json")
    kept = (read_golden(path).reason, read_golden(path).promoted_by)
    assert kept == ("as in https://***@hub/x", "me ***")
    for text in (done.out, done.err, path.read_text()):
        assert "hunter2" not in text


def test_an_accepted_spread_is_shown_with_the_golden(golden, run, tmp_path):
    runs = [run(name, seconds) for name, seconds in (("a", 2.3), ("b", 2.5), ("c", 2.7))]
    assert golden("promote", *runs, "--reason", "x").code == 2
    assert golden("promote", *runs, "--reason", "x", "--accept_spread").code == 0
    assert read_golden(tmp_path / "golden" / f"{NAME}.json").overridden != ()
    assert re.search("Accepted: tflops_per_gpu: 3 runs .* 8.0 %", golden("show", NAME).out)
