"""`mbr-perf sweep` as people call it, with recorded runs in place of training."""

import json
import re
import shutil
from pathlib import Path

import pytest

from harness.launch.environment import this_host
from harness.records.batches import SWEEP_FOLDERS, BatchLaunch
from harness.records.rank import Failure
from harness.records.store import write_record
from harness.records.sweep import read_sweep, run_dir_of
from harness.resolve.recipe import Request
from harness.sweep.plan import plan_sweep
from harness.sweep.request import SweepRequest, split_over
from tests.conftest import layers_of, record_run
from tests.sweep.conftest import predicted

RECIPE = Path(__file__).parents[1] / "data" / "replay" / "replayed.yaml"
OVER = "recompute=none;mlp;core_attn;full:uniform:1"
SECONDS = {"none": 0.010, "mlp": 0.012, "core_attn": 0.011, "full:uniform:1": 0.014}
OOM = Failure(kind="oom", message="not enough memory", phase="forward_backward", step=1, request_bytes=4096)
CRASH = Failure(kind="error", message="ValueError: no", phase="step", step=3)


@pytest.fixture(name="recorded")
def _recorded(make_rank, make_record, tmp_path):
    """Make a recorded sweep: every cell ran ``repeats`` times; rank 0 of the cells in ``ends`` failed like that."""

    def record(repeats=1, ends=None):
        asked = Request(model_recipe_name=str(RECIPE), gpu="cpu")
        launch = BatchLaunch(launcher="replay")
        request = SweepRequest(asked=asked, over=(split_over(OVER),), repeats=repeats, launch=launch)
        plan = plan_sweep(request, this_host(), asks_megatron=False)
        folder = tmp_path / "recorded"
        folder.mkdir()
        SWEEP_FOLDERS.write_plan(folder, plan)
        for cell in plan.cells:
            for repeat in range(repeats):
                seconds = SECONDS[cell.name] * (1 + repeat / 100)
                ranks = [make_rank(cell.spec, r, seconds, recompute=layers_of(cell.spec, r)) for r in (0, 1)]
                run_dir = run_dir_of(folder, cell.index, repeat)
                record_run(run_dir, cell.spec, ranks, (ends or {}).get(cell.name))
                write_record(run_dir, make_record(cell.spec, ranks=tuple(ranks)))
        return folder

    return record


@pytest.fixture(name="sweep")
def _sweep(mbr_perf, tmp_path):
    """Replay a recorded sweep."""

    def run(folder, *arguments):
        return mbr_perf("sweep", "-mr", RECIPE, "-g", "cpu", "--over", OVER, "--launcher", "replay", "--from", folder,
                        "--results_dir", tmp_path / "results", *arguments)  # fmt: skip

    return run


def only_sweep(tmp_path):
    return next((tmp_path / "results" / "sweeps").iterdir())


def statuses(answer):
    return {cell["name"]: cell["status"] for cell in json.loads(answer.out)["cells"]}


@pytest.mark.slow
def test_a_sweep_runs_every_cell_against_the_control_and_recommends_one(recorded, sweep, tmp_path):
    answer = sweep(recorded(), "--json")
    document = json.loads(answer.out)
    assert answer.code == 0
    assert (document["control"], document["recommended"]) == ("none", "none")
    assert statuses(answer) == dict.fromkeys(SECONDS, "ok")
    versus = {cell["name"]: cell["vs_control"]["time_change"] for cell in document["cells"] if cell["vs_control"]}
    assert versus == pytest.approx({"mlp": 0.2, "core_attn": 0.1, "full:uniform:1": 0.4})
    folder = only_sweep(tmp_path)
    assert document["sweep_dir"] == str(folder)
    for index in range(4):
        run_dir = run_dir_of(folder, index, 0)
        assert {"spec.json", "plan.txt", "record.json", "ranks", "logs"} <= {path.name for path in run_dir.iterdir()}


@pytest.mark.slow
def test_repeats_are_interleaved(recorded, sweep):
    answer = sweep(recorded(repeats=2), "--repeats", "2", "-v")
    begun = [line.split("] ")[1].split(": ")[0] for line in answer.err.splitlines() if line.startswith("[")]
    assert begun == [f"{name}, run {n} of 2" for n in (1, 2) for name in SECONDS]


@pytest.mark.slow
def test_a_cell_out_of_memory_is_a_result_and_is_not_repeated(recorded, sweep, tmp_path):
    answer = sweep(recorded(repeats=2, ends={"none": OOM}), "--json", "--repeats", "2")
    assert answer.code == 0
    assert statuses(answer) == {**dict.fromkeys(SECONDS, "ok"), "none": "oom"}
    assert [len(cell.runs) for cell in read_sweep(only_sweep(tmp_path)).cells] == [1, 2, 2, 2]


def unstarted(sweep, source, tmp_path):
    """The folder of a sweep that was killed before its first run."""
    sweep(source)
    folder = only_sweep(tmp_path)
    for cell in (folder / "cells").iterdir():
        shutil.rmtree(cell)
    (folder / "events.jsonl").unlink(missing_ok=True)
    return folder


def with_predictions(folder, needed_bytes, **changes):
    """Give the cells of a sweep that has not run yet predictions of stage 0."""
    plan = read_sweep(folder).plan
    cells = [cell.model_copy(update={"prediction": predicted(needed_bytes[cell.name])}) for cell in plan.cells]
    (folder / "sweep.json").unlink()
    SWEEP_FOLDERS.write_plan(folder, plan.model_copy(update={"cells": tuple(cells), **changes}))


@pytest.mark.slow
@pytest.mark.parametrize(("prune", "status"), [(True, "pruned"), (False, "ok")])
def test_an_oom_teaches_what_not_to_try(recorded, sweep, mbr_perf, tmp_path, prune, status):
    folder = unstarted(sweep, recorded(ends={"mlp": OOM}), tmp_path)
    with_predictions(folder, {"none": 9, "mlp": 5, "core_attn": 8, "full:uniform:1": 3}, prune=prune)
    answer = mbr_perf("sweep", "--resume", folder, "--json")
    assert statuses(answer) == {"none": "ok", "mlp": "oom", "core_attn": status, "full:uniform:1": "ok"}
    taught = [event for event in read_sweep(folder).events if event.kind == "taught"]
    assert [(event.cell, event.by) for event in taught] == ([("core_attn", "mlp")] if prune else [])
    assert ("core_attn: skipped, " in answer.err) == prune


@pytest.mark.slow
def test_a_lesson_that_a_kill_left_unwritten_is_learned_on_resuming(recorded, sweep, mbr_perf, tmp_path):
    folder = unstarted(sweep, recorded(ends={"mlp": OOM}), tmp_path)
    with_predictions(folder, {"none": 9, "mlp": 5, "core_attn": 8, "full:uniform:1": 3})
    mbr_perf("sweep", "--resume", folder)
    (folder / "events.jsonl").unlink()
    answer = mbr_perf("sweep", "--resume", folder, "--json")
    assert statuses(answer)["core_attn"] == "pruned"


def test_a_failed_cell_does_not_stop_the_sweep_and_decides_the_exit_code(recorded, sweep):
    answer = sweep(recorded(ends={"mlp": CRASH}), "--json")
    assert answer.code == 3
    assert statuses(answer) == {**dict.fromkeys(SECONDS, "ok"), "mlp": "failed"}


@pytest.mark.slow
def test_a_report_of_an_unfinished_sweep_names_the_command_that_resumes_it(recorded, sweep, mbr_perf, tmp_path):
    folder = unstarted(sweep, recorded(), tmp_path)
    answer = mbr_perf("report", folder, "--json")
    assert statuses(answer) == dict.fromkeys(SECONDS, "not_run")
    assert re.search(rf"\b4 runs .*: mbr-perf sweep --resume {folder}", json.loads(answer.out)["why"])
    again = mbr_perf("sweep", "--resume", folder, "--json")
    assert (again.code, statuses(again)) == (0, dict.fromkeys(SECONDS, "ok"))


def test_a_report_that_cannot_be_written_does_not_cost_the_answer(recorded, sweep, mbr_perf, tmp_path):
    sweep(recorded(ends={"mlp": CRASH}), "--json")
    folder = only_sweep(tmp_path)
    shutil.rmtree(folder / "report")
    (folder / "report").write_text("in the way")
    answer = mbr_perf("sweep", "--resume", folder, "--json")
    assert (answer.code, statuses(answer)["mlp"]) == (3, "failed")
    assert f"{folder}/report" in answer.err


def comparable(answer):
    """The answer without what differs between any two sweeps."""
    document = json.loads(answer.out)
    return {
        key: value
        for key, value in document.items()
        if key not in ("sweep_id", "sweep_dir", "started_at", "command", "report")
    }


@pytest.mark.slow
def test_a_sweep_that_was_killed_and_resumed_answers_like_an_unbroken_one(recorded, sweep, mbr_perf, tmp_path):
    source = recorded(repeats=2, ends={"mlp": CRASH})
    unbroken = sweep(source, "--json", "--repeats", "2")
    folder = only_sweep(tmp_path)
    (run_dir_of(folder, 2, 0) / "record.json").unlink()  # killed while it ran
    shutil.rmtree(run_dir_of(folder, 3, 0))
    for index in (0, 2, 3):
        shutil.rmtree(run_dir_of(folder, index, 1))
    reports = [folder / "report" / f"report.{form}" for form in ("html", "md", "json")]
    for path in (*reports, mine := folder / "report" / "mine.svg"):
        path.write_text("of an earlier sitting")
    resumed = mbr_perf("sweep", "--resume", folder, "--json")
    assert [path.name for path in reports if path.read_text() == "of an earlier sitting"] == []
    assert mine.read_text() == "of an earlier sitting"
    assert comparable(resumed) == comparable(unbroken)
    assert resumed.code == unbroken.code == 3
    assert (folder / "cells" / "002" / "0.incomplete-1" / "ranks").is_dir()


@pytest.mark.slow
def test_resuming_a_sweep_that_is_done_runs_nothing(recorded, sweep, mbr_perf, tmp_path):
    first = sweep(recorded(), "--json")
    again = mbr_perf(
        "sweep", "--resume", only_sweep(tmp_path).name[-8:], "--results_dir", tmp_path / "results", "--json"
    )
    assert comparable(again) == comparable(first)
    assert again.err == ""


@pytest.mark.slow
def test_a_resumed_sweep_takes_nothing_else_from_the_command_line(recorded, sweep, mbr_perf, tmp_path):
    sweep(recorded())
    answer = mbr_perf(
        "sweep", "--resume", only_sweep(tmp_path), "-mr", RECIPE, "--over", "tp=1", "--repeats", 3, "--no_prune"
    )
    assert answer.code == 2
    assert re.search("--resume .*; --model_recipe_name, --over, --repeats, --no_prune", answer.err)


def test_other_software_than_the_sweep_began_with_is_refused(mbr_perf, tmp_path):
    folder = shutil.copytree(RECIPE.parents[1] / "results" / "sweeps" / "sweep-1", tmp_path / "sweep-1")
    text = (folder / "sweep.json").read_text()
    version = read_sweep(folder).plan.software.megatron_core
    (folder / "sweep.json").write_text(text.replace(f'"megatron_core": "{version}"', '"megatron_core": "0.15.0"'))
    answer = mbr_perf("sweep", "--resume", folder)
    assert answer.code == 2
    assert " megatron_core 0.15.0, now " in answer.err


def test_a_recording_that_lacks_a_cell_is_reported_before_anything_runs(recorded, mbr_perf, tmp_path):
    answer = mbr_perf("sweep", "-mr", RECIPE, "-g", "cpu", "--over", "recompute=none;layernorm", "--launcher", "replay",
                      "--from", recorded(), "--results_dir", tmp_path / "results")  # fmt: skip
    assert answer.code == 2
    assert "layernorm" in answer.err
    assert not (tmp_path / "results").exists()


def test_everything_wrong_with_a_sweep_is_reported_at_once(mbr_perf, tmp_path):
    answer = mbr_perf("sweep", "-mr", RECIPE, "-g", "cpu", "--over", "tp=two", "--over", "recomptue=mlp", "--repeats", 0,
                      "--margin", 2, "--results_dir", tmp_path / "results")  # fmt: skip
    assert answer.code == 2
    for message in ("--over tp: 'two'", "'recompute'?", "--repeats 0", "--margin 2"):
        assert message in answer.err
    assert not (tmp_path / "results").exists()


def test_cells_none_of_which_is_legal_are_a_wrong_request(mbr_perf):
    answer = mbr_perf(
        "sweep", "-mr", RECIPE, "-g", "cpu", "--over", "tp=3,5", "--control", "tp=7", "--launcher", "replay", "--dryrun"
    )
    assert answer.code == 2
    assert [tp for tp in (3, 5, 7) if not re.search(rf"\btp={tp}: P03: ", answer.err)] == []


def dry(mbr_perf, over):
    answer = mbr_perf("sweep", "-mr", RECIPE, "-g", "cpu", "--over", over, "--launcher", "replay", "--dryrun", "--json")
    assert answer.code == 0
    return {cell["name"]: cell for cell in json.loads(answer.out)["cells"]}


def test_an_illegal_cell_among_legal_ones_names_its_rule(mbr_perf):
    cells = dry(mbr_perf, "pp=1,3")
    assert {name: cell["fate"] for name, cell in cells.items()} == {"pp=2": "run", "pp=1": "run", "pp=3": "illegal"}
    assert cells["pp=3"]["reason"]


def test_a_setting_equal_in_effect_to_another_is_skipped_and_names_it(mbr_perf):
    cells = dry(mbr_perf, "recompute=mlp,core_attn;core_attn,mlp;moe,mlp")
    assert {name: (cell["fate"], cell["same_as"]) for name, cell in cells.items()} == {
        "none": ("run", None),
        "mlp,core_attn": ("run", None),
        "core_attn,mlp": ("skipped_inert", "mlp,core_attn"),
        "moe,mlp": ("run", None),
    }


def test_a_missing_recipe_is_reported(mbr_perf):
    answer = mbr_perf("sweep", "--over", "tp=1,2")
    assert answer.code == 2
    assert " -mr " in answer.err and "--resume SWEEP" in answer.err


def test_a_sweep_file_is_run_and_the_command_line_wins_over_it(mbr_perf, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"title: Mine\nrequest:\n  model_recipe_name: {RECIPE}\n  gpu: cpu\n  max_steps: 5\n  env: [A=1]\n"
        "over:\n  recompute: [none, mlp]\n  mb: [1, 2]\nrepeats: 2\n"
    )
    answer = mbr_perf(
        "sweep", "--file", file, "--over", "-mb=1,4", "-ms", 7, "--launcher", "replay", "--dryrun", "--json"
    )
    document = json.loads(answer.out)
    assert (answer.code, document["title"], document["repeats"]) == (0, "Mine", 2)
    assert document["axes"] == [{"name": "recompute", "values": ["none", "mlp"]}, {"name": "mb", "values": ["1", "4"]}]
    assert [cell["name"] for cell in document["cells"]] == ["none mb=1", "mlp", "mb=4"]


def test_several_axes_may_follow_one_over(mbr_perf):
    answer = mbr_perf("sweep", "-mr", RECIPE, "-g", "cpu", "--launcher", "replay", "--over", "recompute=none;mlp",
                      "gb=2,4", "--from", "nowhere", "--control", "sl=1")  # fmt: skip
    assert answer.code == 2
    assert "axes: recompute, gb" in answer.err


def test_cells_that_differ_in_the_allocator_alone_are_predicted_apart(mbr_perf):
    settings = "expandable_segments:True,expandable_segments:False,max_split_size_mb:128"
    asked = ("sweep", "-mr", "llama3_8b", "-g", "h100", "--over", f"env.PYTORCH_CUDA_ALLOC_CONF={settings}")
    found = [cell["prediction"] for cell in json.loads(mbr_perf(*asked, "--dryrun", "--json").out)["cells"]]
    assert len({row["peak_bytes"] for row in found}) == 1
    assert [row["reserved_source"] for row in found] == ["replayed"] * 3
    expandable, native, split = ((row["reserved_bytes"], row["fits_bytes"]) for row in found)
    assert expandable[0] < native[0] and expandable[1] < native[1]
    assert split != native
