"""A folder that disappears under a run at work ends it with the name of the folder."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.batch.engine import holding
from harness.errors import RunFailedError
from harness.records.night import read_night

SUITE = """title: One case
defaults: {request: {model_recipe_name: llama3_8b, gpu: cpu, max_steps: 2000}}
cases:
  - {name: one, golden: optional, request: {recompute: none}}
"""
ASKED = {
    "run": ("run", "-mr", "llama3_8b", "-g", "cpu", "-ms", "2000"),
    "sweep": ("sweep", "-mr", "llama3_8b", "-g", "cpu", "-ms", "2000", "--over", "recompute=none; mlp", "--no_prune"),
    "nightly": ("nightly", "SUITE"),
}


@pytest.mark.train
@pytest.mark.parametrize(
    ("asked", "what"),
    [("run", "ranks"), ("run", "run"), ("run", "results"),
     *(pytest.param(batch, what, marks=pytest.mark.slow) for batch in ("sweep", "nightly") for what in ("run", "batch", "results"))],
)  # fmt: skip
def test_a_deleted_folder_is_named_and_nothing_goes_on(tmp_path, asked, what):
    results, suite = tmp_path / "results", tmp_path / "suite.yaml"
    suite.write_text(SUITE)
    words = [str(suite) if word == "SUITE" else word for word in ASKED[asked]]
    command = (sys.executable, "-c", "from harness.app import main; main()", *words, "--results_dir", str(results))
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (found := list(results.rglob("rank_000.progress.jsonl"))) and time.monotonic() < deadline:
            time.sleep(0.1)
        ranks = found[0].parent
        batch = results / ranks.relative_to(results).parts[0] / ranks.relative_to(results).parts[1]
        gone = {"ranks": ranks, "run": ranks.parent, "batch": batch, "results": results}[what]
        shutil.rmtree(gone, ignore_errors=True)
        _, err = running.communicate(timeout=90)
    finally:
        running.kill()
    assert running.returncode == 3
    named = (ranks,) if asked == "run" else (ranks, ranks.parent, batch)
    assert any(f"error: {folder}: the folder was deleted while the run was at work" in err for folder in named)
    assert "Traceback" not in err.rpartition("error: ")[2]


def test_a_batch_without_its_plan_was_deleted_under_it(tmp_path):
    """A run that still writes can make the folder again: its missing plan is no wrong request."""
    with pytest.raises(RunFailedError, match=f"{tmp_path}: the folder was deleted"):
        _read_after_deletion(tmp_path)


def _read_after_deletion(night_dir: Path) -> None:
    with holding(night_dir, "night"):
        shutil.rmtree(night_dir)
        night_dir.mkdir()
        read_night(night_dir)
