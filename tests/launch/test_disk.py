"""Commands report full disks, and folders that are deleted, replaced or closed to this user."""

import errno
from pathlib import Path

import pytest

from harness.errors import RunFailedError
from harness.records.disk import disk_faults_reported, free_bytes, require_room

MIB = 1024**2


def test_too_little_room_is_refused_before_the_start(tmp_path):
    require_room(tmp_path, 64 * MIB)
    with pytest.raises(RunFailedError, match=r"disk full: 63.00 MiB free for .*, 64.00 MiB needed"):
        require_room(tmp_path, 63 * MIB)
    assert free_bytes(tmp_path) > free_bytes(Path("/proc")) == 0


def taken(folder, act):
    """The message of the fault that ``act`` meets in a folder."""
    with pytest.raises(RunFailedError) as raised, disk_faults_reported(folder):
        act()
    return raised.value.message


def failing(*of_the_system):
    def act():
        raise OSError(*of_the_system)

    return act


def test_the_file_or_folder_that_finds_no_room_is_named_wherever_it_is(tmp_path):
    cached = tmp_path / "cache" / "prediction.json"
    assert taken(tmp_path, failing(errno.ENOSPC, "no room")).startswith(f"disk full: cannot write in {tmp_path}")
    assert taken(tmp_path, failing(errno.EDQUOT, "no room")).startswith(f"disk full: cannot write in {tmp_path}")
    assert (
        taken(tmp_path / "sweep", failing(errno.ENOSPC, "no room", str(cached))) == f"disk full: cannot write {cached}"
    )


def test_a_folder_that_was_taken_away_or_closed_is_named(tmp_path):
    run, ranks = tmp_path / "run", tmp_path / "run" / "ranks"

    def write():
        (ranks / "x.json").write_text("")

    said = taken(run, write)
    assert said.startswith(f"{run}: ") and "deleted" in said
    run.mkdir()
    assert taken(run, write).startswith(f"{ranks}: ")
    ranks.write_text("a file")
    said = taken(run, write)
    assert said.startswith(f"{ranks}: ") and "replaced" in said
    closed = errno.EACCES, "Permission denied"
    own = tmp_path / "record.json"
    assert taken(tmp_path, failing(*closed, str(own))).startswith(f"{own}: ")


def test_other_faults_and_files_that_are_only_missing_stay_errors(tmp_path):
    with pytest.raises(OSError, match="broken"), disk_faults_reported(tmp_path):
        raise OSError(errno.EIO, "broken")
    for missing in (tmp_path / "missing.json", tmp_path.parent / "elsewhere.json"):
        with pytest.raises(FileNotFoundError), disk_faults_reported(tmp_path):
            missing.read_text()
