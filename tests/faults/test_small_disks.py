"""Full disks, as small file systems: mbr-perf names the cause, and no file is half written."""

import json
import shutil
import subprocess

import pytest

from harness.errors import BadRequestError
from harness.records.store import read_run

pytestmark = pytest.mark.slow


def test_results_without_room_are_refused_before_anything_starts(stage, on_small_disk, tmp_path):
    results = tmp_path / "results"
    code, _, err, left = on_small_disk(stage.run_command(results), results, "1m", "none")
    assert code == 3
    assert "disk full: " in err
    assert "64.00 MiB needed" in err
    assert not list(left.rglob("record.json"))
    assert not list(left.rglob("rank_*"))


def test_results_that_fill_up_fail_the_run_and_leave_no_half_record(stage, on_small_disk, tmp_path):
    results = tmp_path / "results"
    run_dir = results / "runs" / "mine"
    stage.let(fill="ranks")
    command = stage.run_command(results, "--run_dir", run_dir)
    code, out, err, left = on_small_disk(command, results, "80m", run_dir / "ranks" / "filler")
    assert code == 3, out + err
    assert f"disk full: cannot write {run_dir}/" in err
    for path in left.rglob("*.json"):
        assert json.loads(path.read_text()) is not None
    with pytest.raises(BadRequestError, match=r"no record\.json"):
        read_run(left / "runs" / "mine")


def test_a_golden_that_has_no_room_is_as_it_was_before(stage, mbr_perf, on_small_disk, tmp_path):
    stage.let()
    subprocess.run(stage.run_command(tmp_path, "--run_dir", tmp_path / "mine"), env=stage.environment, check=True)
    goldens = tmp_path / "goldens"
    promote = ("golden", "promote", tmp_path / "mine", "--accept_spread", "--golden_dir", goldens)
    assert mbr_perf(*promote, "--reason", "the first").code == 0
    (path,) = goldens.glob("*/*.json")
    before = path.read_bytes()
    filled = ("sh", "-c", 'head -c 100m /dev/zero > "$filler"; exec "$@"', "sh")
    fill = (*filled, *stage.command(*promote, "--reason", "the next"))
    copy = tmp_path / "copy"
    shutil.copytree(goldens, copy)
    code, _, err, left = on_small_disk(fill, goldens, "1m", goldens / "filler", copy)
    assert (code, f"{path}: " in err, "No space left on device" in err) == (2, True, True), err
    assert {file.relative_to(left): file.read_bytes() for file in left.rglob("*") if file.is_file()} == {
        path.relative_to(goldens): before
    }
    assert mbr_perf(*promote, "--reason", "the next").code == 0
    assert path.read_bytes() != before


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


def test_logs_on_a_read_only_disk_are_refused_before_anything_starts(stage, on_small_disk, tmp_path):
    results = tmp_path / "results"
    run_dir = results / "runs" / "mine"
    logs = run_dir / "logs"
    read_only = ("sh", "-c", 'mount -o remount,ro "$small"; exec "$@"', "sh")
    command = stage.run_command(results, "--run_dir", run_dir)
    code, _, err, _ = on_small_disk((*read_only, *command), logs, "100m", "none")
    assert (code, f"error: {logs}: " in err, "Read-only file system" in err) == (3, True, True), err
    assert not list(run_dir.rglob("rank_*"))
