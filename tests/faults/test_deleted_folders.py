"""A folder that disappears under a run at work ends it with the name of the folder."""

import shutil
import sys
import time
from pathlib import Path

import pytest

from harness.batch.engine import holding
from harness.errors import RunFailedError
from harness.records.night import read_night
from tests.faults.at_work import PATIENCE_S
from tests.faults.stage import RECIPE, SETTINGS

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
    assert any(f"error: {folder}: the folder was deleted while mbr-perf was using it" in err for folder in named)
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
