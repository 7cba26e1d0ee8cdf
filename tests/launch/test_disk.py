"""Commands report full disks, and folders that are deleted, replaced or closed to this user."""

import errno
from pathlib import Path

import pytest

from harness.errors import RunFailedError
from harness.records.disk import disk_faults_reported, free_bytes, is_full, require_room

MIB = 1024**2


def test_too_little_room_is_refused_before_the_start(tmp_path):
    with pytest.raises(RunFailedError, match=r"disk full: 63.00 MiB free for .*, 64.00 MiB needed"):
        require_room(tmp_path, 63 * MIB)


def test_enough_room_is_enough(tmp_path):
    require_room(tmp_path, 64 * MIB)


def test_less_than_a_mebibyte_is_full():
    assert (is_full(MIB - 1), is_full(MIB)) == (True, False)


def test_room_is_measured_where_the_run_writes(tmp_path):
    assert free_bytes(tmp_path) > 0
    assert free_bytes(Path("/proc")) == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_that_finds_no_room_is_a_failed_run(tmp_path, number):
    with (
        pytest.raises(RunFailedError, match=f"disk full: cannot write in {tmp_path}"),
        disk_faults_reported(tmp_path),
    ):
        raise OSError(number, "no room")


def test_the_file_that_finds_no_room_is_named_wherever_it_is(tmp_path):
    cached = tmp_path / "cache" / "prediction.json"
    with pytest.raises(RunFailedError) as raised, disk_faults_reported(tmp_path / "sweep"):
        raise OSError(errno.ENOSPC, "no room", str(cached))
    assert raised.value.message == f"disk full: cannot write {cached}"
    assert raised.value.remedy.startswith(f"free space on the file system of {cached}; ")


def test_other_faults_of_a_disk_are_not_called_full(tmp_path):
    with pytest.raises(OSError, match="broken") as raised, disk_faults_reported(tmp_path):
        raise OSError(errno.EIO, "broken")
    assert not isinstance(raised.value, RunFailedError)


def _taken(folder, act):
    with pytest.raises(RunFailedError) as raised, disk_faults_reported(folder):
        act(folder)
    return raised.value.message


def test_a_folder_that_was_taken_away_is_named(tmp_path):
    run, ranks = tmp_path / "run", tmp_path / "run" / "ranks"
    gone = "the folder was deleted while mbr-perf was using it"
    assert _taken(run, lambda run: (run / "ranks" / "x.json").write_text("")).startswith(f"{run}: {gone}")
    run.mkdir()
    assert _taken(run, lambda _: (ranks / "x.json").write_text("")).startswith(f"{ranks}: {gone}")
    ranks.write_text("a file")
    replaced = "the folder was replaced by a file"
    assert _taken(run, lambda _: (ranks / "x.json").write_text("")).startswith(f"{ranks}: {replaced}")


def test_a_folder_that_was_closed_is_named():
    message = _taken(Path("/proc"), lambda proc: _refused(proc / "record.json"))  # where even root cannot make a file
    assert message.startswith("/proc: mbr-perf can no longer write here: Permission denied")


def test_a_file_that_was_closed_is_named_and_not_its_folder(tmp_path):
    message = _taken(tmp_path, lambda folder: _refused(folder / "record.json"))
    assert message.startswith(f"{tmp_path}/record.json: mbr-perf can no longer read or write this file: Permission")


def _refused(file):
    raise PermissionError(errno.EACCES, "Permission denied", str(file))


def test_a_file_elsewhere_and_a_file_that_is_only_missing_stay_errors(tmp_path):
    for missing in (tmp_path / "missing.json", tmp_path.parent / "elsewhere.json"):
        with pytest.raises(FileNotFoundError), disk_faults_reported(tmp_path):
            missing.read_text()
