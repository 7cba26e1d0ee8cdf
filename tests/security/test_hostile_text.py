"""Names and messages come from recipes, logs and records: every command prints them as they stand, and obeys none."""

import io
import json
import re
import shutil

import pytest

from harness.records.rank import Failure
from harness.show.page import visible
from harness.show.terminal import Console
from tests.jobs.test_slurm import RECIPE, ROOT
from tests.nightly.night_recordings import Stage
from tests.snapshot_pickles import Allocator, written

HOSTILE = "\x1b]0;x\x9b2J[red]\u202e"
SHOWN = r"\x1b]0;x\x9b2J[red]\u202e"
FAILURE = Failure(kind="error", message=HOSTILE, phase="build_model")


def harmless(answer, code=0):
    """All that was printed, with nothing in it that a terminal would obey."""
    assert answer.code == code, answer.err
    text = answer.out + answer.err
    assert visible(text) == text
    return text


def shown(answer, code=0):
    """The same, and the hostile text is to be read in it."""
    assert SHOWN in harmless(answer, code)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_on_a_console_only_its_own_colours_steer(is_terminal):
    out = io.StringIO()
    Console(file=out, force_terminal=is_terminal, highlight=False).print(HOSTILE, style="bold", markup=False)
    assert SHOWN in out.getvalue()
    assert ("\x1b[1m" in out.getvalue()) == is_terminal


def test_every_mark_that_turns_the_direction_of_writing_is_shown():
    marks = ("061c", "200e", "200f", *(f"{code:x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))
    assert visible("".join(chr(int(mark, 16)) for mark in marks)) == "".join(rf"\u{mark}" for mark in marks)


@pytest.mark.parametrize("typed", [("doctor", HOSTILE), (HOSTILE,), ("doctor", f"--{HOSTILE}")])
def test_a_command_line_that_cannot_be_parsed(mbr_perf, typed):
    shown(mbr_perf(*typed), code=2)


@pytest.mark.slow
def test_what_a_run_failed_of(mbr_perf, replay, tmp_path):
    recorded = tmp_path / "recorded"
    shutil.copytree(ROOT / "tests" / "data" / "replay" / "ok", recorded / "ok")
    path = recorded / "ok" / "ranks" / "rank_001.json"
    changed = {"failure": FAILURE.model_dump(), "finished": False}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    shown(replay("ok", folder=recorded), code=3)
    (run_dir,) = (tmp_path / "results" / "runs").iterdir()
    shown(mbr_perf("diagnose", run_dir, "--no_plan"))
    harmless(mbr_perf("results", "list", "--results_dir", tmp_path / "results"))


def test_what_a_record_holds(mbr_perf, run, tmp_path):
    ours = run("a", seconds=3.0, provenance={"driver_version": HOSTILE, "hostname": HOSTILE})
    theirs, results = run("b"), ("--results_dir", tmp_path / "results")
    shown(mbr_perf("explain", ours, theirs, *results))
    harmless(mbr_perf("history", "add", ours, *results))
    (case,) = json.loads(mbr_perf("history", *results, "--json").out)["cases"]
    harmless(mbr_perf("history", case["case"], *results))


def test_why_a_golden_is_one(mbr_perf, run, tmp_path):
    goldens = ("--golden_dir", tmp_path / "golden")
    signed = ("--reason", HOSTILE, "--author", HOSTILE)
    harmless(mbr_perf("golden", "promote", run("a"), *signed, *goldens))
    (path,) = (tmp_path / "golden").rglob("*.json")
    shown(mbr_perf("golden", "show", path, *goldens))
    harmless(mbr_perf("explain", path, run("b"), *goldens))


def test_what_the_cells_of_a_sweep_are_called(mbr_perf, tmp_path):
    sweep = tmp_path / "sweep"
    shutil.copytree(ROOT / "tests" / "data" / "sweeps" / "cpu_oom", sweep)
    plan = json.loads((sweep / "sweep.json").read_text())
    plan["cells"][1]["name"] = plan["title"] = HOSTILE
    (sweep / "sweep.json").write_text(json.dumps(plan))
    shown(mbr_perf("report", sweep, "--out", tmp_path / "out"))


@pytest.mark.slow
def test_how_a_case_of_a_night_failed(mbr_perf, tmp_path):
    stage = Stage(tmp_path, {"a": "request: {recompute: mlp}"})
    stage.record("a", 0, failure=FAILURE)
    shown(mbr_perf(*stage.arguments()), code=3)


def test_what_a_log_says(mbr_perf, tmp_path):
    (tmp_path / "log").write_text(
        "Traceback (most recent call last):\nRuntimeError: [red]\x1b[31mno \x1b]0;x\x07luck\n"
    )
    assert "[red]no luck" in harmless(mbr_perf("diagnose", tmp_path / "log"))


@pytest.mark.slow
def test_the_functions_of_a_snapshot(mbr_perf, tmp_path):
    allocator = Allocator()
    allocator.alloc(2**26, [{"filename": f"/job/{HOSTILE}.py", "line": 7, "name": HOSTILE}])
    path = written(tmp_path / "a.pickle", allocator.snapshot())
    assert "/job/?]0;x?2J[red]?.py:7" in harmless(mbr_perf("snapshot", path))


def test_the_jobs_of_a_queue(mbr_perf, slurm, tmp_path):
    slurm.answers("sbatch", f"printf '%b' '{HOSTILE.encode('unicode_escape').decode()}' >&2; exit 1")
    on_slurm = ("-mr", RECIPE, "-g", "cpu", "-gn", "1", "--launcher", "slurm", "--time_limit", "10", "--detach")
    shown(mbr_perf("run", *on_slurm, "--results_dir", tmp_path / "results"), code=2)


def test_the_name_of_a_file(mbr_perf, tmp_path):
    shown(mbr_perf("run", "-mr", f"{HOSTILE}/x.yaml"), code=2)
    shown(mbr_perf("results", "show", HOSTILE, "--results_dir", tmp_path), code=2)


@pytest.mark.parametrize("text", ["a\nPASS (exit 0)  all fine", "\x1b]0;x"])
@pytest.mark.parametrize(
    ("file", "key", "asks"),
    [
        ("llama/mine.yaml", "title", ("recipes", "show", "mine", "--recipes_dir")),
        ("llama/mine.yaml", "source", ("recipes", "show", "mine", "--recipes_dir")),
        ("sweeps/mine.yaml", "title", ("sweep", "--file", "mine", "--dryrun", "--recipes_dir")),
        ("suites/mine.yaml", "title", ("nightly", "mine", "--dryrun", "--recipes_dir")),
        ("suites/mine.yaml", "owner", ("nightly", "mine", "--dryrun", "--recipes_dir")),
    ],
)
def test_what_a_file_says_on_one_line_breaks_no_line_and_steers_nothing(mbr_perf, tmp_path, file, key, asks, text):
    written = {
        "llama/mine.yaml": RECIPE.read_text().replace("name: replayed", "name: mine"),
        "sweeps/mine.yaml": "title: T\nrequest: {model_recipe_name: mine}\nover: {recompute: [none]}\n",
        "suites/mine.yaml": "title: T\ncases:\n- request: {model_recipe_name: mine}\n  owner: me\n",
    }[file]
    path = tmp_path / file
    path.parent.mkdir()
    changed = re.sub(rf"(?m)^( *){key}: .*$", lambda found: f"{found[1]}{key}: {json.dumps(text)}", written, count=1)
    path.write_text(changed)
    errors = harmless(mbr_perf(*asks, tmp_path), code=2)
    line = 1 + changed[: changed.index(f"{key}: ")].count("\n")
    assert re.search(rf"mine.yaml:{line}: [^:]*{key}: holds a ", errors)
    assert not [line for line in errors.splitlines() if line.startswith("PASS")]
