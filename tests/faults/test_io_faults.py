"""Errors of the operating system and deleted folders end a command with a documented code, a path and a reason."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.batch.engine import holding
from harness.errors import RunFailedError
from harness.records.night import read_night
from tests.faults.at_work import PATIENCE_S
from tests.faults.io_faults import REPLAY, ROOT, commands
from tests.faults.stage import RECIPE, SETTINGS

RUN = ("run", "-mr", REPLAY / "replayed.yaml", "-g", "cpu", "--launcher", "replay", "--from", REPLAY / "ok")


def harness(*words, shell="", cwd=ROOT):
    """Run a command behind what the shell does with its streams or limits."""
    command = ["bash", "-c", f'exec "$0" -m harness.app "$@" {shell}', sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("command", sorted(commands(Path(), "")))
def test_every_error_at_every_call_is_told(command):
    done = subprocess.run([sys.executable, "-m", "tests.faults.io_faults", command], cwd=ROOT, capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.slow
def test_an_answer_that_stdout_cannot_take_is_told_and_a_verdict_keeps_its_code(tmp_path):
    asked = (*RUN, "--results_dir", tmp_path / "results")
    listed = harness("recipes", "list", shell="> /dev/full")
    assert (listed.returncode, listed.stderr.startswith("error: stdout: No space left on device")) == (3, True)
    for code, words in ((3, asked), (3, ("nightly", "cpu_smoke", "--dryrun"))):
        assert harness(*words, shell="> /dev/full").returncode == code
    assert harness(*asked, "--require_golden", shell="> /dev/full").returncode == 6
    assert harness("plan", "nonsense", shell="> /dev/full").returncode == 2
    assert harness(*asked, shell="2> /dev/full").returncode == 0
    assert len(list((tmp_path / "results" / "runs").glob("*/record.json"))) == 3


@pytest.mark.slow
def test_a_deleted_working_folder_is_told(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    script = f'cd {folder} && rmdir {folder} && exec "$0" -m harness.app "$@"'
    done = subprocess.run(["bash", "-c", script, sys.executable, *map(str, RUN)], capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, "folder" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.slow
def test_a_limit_of_file_sizes_is_told_with_the_file(tmp_path):
    words = ["bash", "-c", 'ulimit -f 1; exec "$0" -m harness.app "$@"', sys.executable]
    asked = [*RUN, "--results_dir", tmp_path / "results"]
    done = subprocess.run([*words, *map(str, asked)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "spec.json: File too large" in done.stderr, "Traceback" in done.stderr) == (3, True, False)


TRAINED = ("-mr", "llama3_8b", "-g", "cpu", "-ms", "2000")
PLAYED = ("-mr", RECIPE, "-g", "h100", *(word for setting in SETTINGS for word in ("--set", setting)))
OVER = ("--over", "recompute=none; mlp", "--no_prune")
SUITE = f"""title: One case
defaults: {{request: {{model_recipe_name: {RECIPE}, gpu: h100, set_values: [{", ".join(SETTINGS)}]}}}}
cases:
  - {{name: one, golden: optional, request: {{recompute: none}}}}
"""


@pytest.mark.train
@pytest.mark.slow
def test_a_deleted_folder_of_ranks_that_train_is_named_and_nothing_goes_on(started, tmp_path):
    results = tmp_path / "results"
    with started((sys.executable, "-m", "harness.app", "run", *TRAINED, "--results_dir", str(results))) as running:
        _delete_and_read(running, results, "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ("run", "ranks"),
        ("run", "results"),
        ("sweep", "run"),
        ("sweep", "results"),
        ("nightly", "run"),
        ("nightly", "batch"),
    ],
)
def test_a_deleted_folder_is_named_and_nothing_goes_on(stage, started, tmp_path, asked, what):
    results, suite = tmp_path / "results", tmp_path / "suite.yaml"
    suite.write_text(SUITE)
    words = {"run": PLAYED, "sweep": (*PLAYED, *OVER), "nightly": (suite,)}[asked]
    stage.let(wait="/nowhere")
    with started(stage.command(asked, *words, "--results_dir", results)) as running:
        _delete_and_read(running, results, what)


def _delete_and_read(running, results, what):
    """Delete the folder once rank 0 is at work, and read what the command then reports."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := list(results.rglob("rank_000.progress.jsonl"))) and time.monotonic() < deadline:
        assert running.process.poll() is None, running.process.communicate()
        time.sleep(0.05)
    assert found, f"rank 0 wrote no heartbeat within {PATIENCE_S:g} s"
    ranks = found[0].parent
    batch = results / ranks.relative_to(results).parts[0] / ranks.relative_to(results).parts[1]
    gone = {"ranks": ranks, "run": ranks.parent, "batch": batch, "results": results}[what]
    while gone.exists():  # the sampler writes into it at the same time
        assert time.monotonic() < deadline, f"{gone} cannot be deleted"
        shutil.rmtree(gone, ignore_errors=True)
    code, _, err = running.ended()
    assert code == 3, err
    named = (ranks,) if batch.parent.name == "runs" else (ranks, ranks.parent, batch)
    assert any(
        f"error: {folder}: the folder was deleted or replaced while mbr-perf was using it" in err for folder in named
    )
    assert "Traceback" not in err.rpartition("error: ")[2]


def test_a_batch_without_its_plan_was_deleted_under_it(tmp_path):
    """A run that still writes can make the folder again: its missing plan is no wrong request."""
    with pytest.raises(RunFailedError, match=f"{tmp_path}: .* the night"):
        _read_after_deletion(tmp_path)


def _read_after_deletion(night_dir: Path) -> None:
    with holding(night_dir, "night"):
        shutil.rmtree(night_dir)
        night_dir.mkdir()
        read_night(night_dir)
