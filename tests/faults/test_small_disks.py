"""Disks that fill up, as small file systems of their own: told as such, and nothing on them is half."""

import json

import pytest

from harness.errors import BadRequestError
from harness.records.store import read_run


def test_results_without_room_are_refused_before_anything_starts(stage, on_small_disk, tmp_path):
    results = tmp_path / "results"
    code, _, err, left = on_small_disk(stage.run_command(results), results, "1m", "none")
    assert code == 3
    assert "disk full: " in err
    assert "64.00 MiB needed" in err
    assert not list(left.rglob("record.json"))
    assert not list(left.rglob("rank_*"))


def test_results_that_fill_up_fail_the_run_and_leave_the_golden_and_no_half_record(stage, on_small_disk, tmp_path):
    results, old = tmp_path / "results", tmp_path / "old"
    (old / "golden").mkdir(parents=True)
    golden = json.dumps({"metrics": list(range(1000))})
    (old / "golden" / "kept.json").write_text(golden)
    run_dir = results / "runs" / "mine"
    stage.let(fill="ranks")
    command = stage.run_command(results, "--run_dir", run_dir)
    code, out, err, left = on_small_disk(command, results, "80m", run_dir / "ranks" / "filler", old)
    assert code == 3, out + err
    assert "disk full" in out + err
    assert (left / "golden" / "kept.json").read_text() == golden
    for path in left.rglob("*.json"):
        assert json.loads(path.read_text()) is not None
    with pytest.raises(BadRequestError, match=r"no record\.json"):
        read_run(left / "runs" / "mine")


def test_logs_that_fill_up_fail_the_run_by_that_name(stage, on_small_disk, tmp_path):
    results = tmp_path / "results"
    run_dir = results / "runs" / "mine"
    stage.let(fill="logs")
    command = stage.run_command(results, "--run_dir", run_dir)
    code, out, err, _ = on_small_disk(command, run_dir / "logs", "70m", "none")
    assert code == 3, out + err
    record = read_run(run_dir)
    assert record.status == "failed"
    assert record.failure.startswith("disk full; rank 0 (stage 0) failed after step 1: ")


def test_logs_without_room_are_refused_before_anything_starts(stage, on_small_disk, tmp_path):
    results = tmp_path / "results"
    run_dir = results / "runs" / "mine"
    command = stage.run_command(results, "--run_dir", run_dir)
    code, _, err, _ = on_small_disk(command, run_dir / "logs", "128k", "none")
    assert code == 3
    assert f"free for {run_dir / 'logs'}, 64.00 MiB needed" in err
