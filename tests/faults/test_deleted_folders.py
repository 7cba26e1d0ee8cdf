"""A folder that disappears under a run at work ends it with the name of the folder."""

import shutil
import subprocess
import sys
import time

import pytest


@pytest.mark.train
@pytest.mark.parametrize("what", ["ranks", "run", "results"])
def test_a_deleted_folder_is_named_and_nothing_goes_on(tmp_path, what):
    results = tmp_path / "results"
    command = (
        sys.executable,
        "-c",
        "from harness.app import main; main()",
        "run",
        "-mr",
        "llama3_8b",
        "-g",
        "cpu",
        "-ms",
        "2000",
        "--results_dir",
        results,
    )
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (found := list(results.rglob("rank_000.progress.jsonl"))) and time.monotonic() < deadline:
            time.sleep(0.1)
        ranks = found[0].parent
        shutil.rmtree({"ranks": ranks, "run": ranks.parent, "results": results}[what], ignore_errors=True)
        _, err = running.communicate(timeout=90)
    finally:
        running.kill()
    assert running.returncode == 3
    assert f"error: {ranks}: the folder was deleted while the run was at work" in err
    assert "Traceback" not in err.rpartition("error: ")[2]
