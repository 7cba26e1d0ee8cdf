"""Commands report a full disk as such."""

import errno
from pathlib import Path

import pytest

from harness.errors import RunFailedError
from harness.records.folders import free_bytes, full_disk_reported, is_full, require_room

MIB = 1024**2


def test_too_little_room_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"disk full: 63.00 MiB free for .*, 64.00 MiB needed"):
        require_room(tmp_path, 63 * MIB)


def test_enough_room_is_enough(tmp_path: Path) -> None:
    require_room(tmp_path, 64 * MIB)


def test_less_than_a_mebibyte_is_full() -> None:
    assert (is_full(MIB - 1), is_full(MIB)) == (True, False)


def test_room_is_measured_where_the_run_writes(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
    assert free_bytes(Path("/proc")) == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_that_finds_no_room_is_a_failed_run(tmp_path: Path, number: int) -> None:
    with (
        pytest.raises(RunFailedError, match=f"disk full: cannot write in {tmp_path}"),
        full_disk_reported(tmp_path),
    ):
        raise OSError(number, "no room")


def test_other_faults_of_a_disk_are_not_called_full(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broken") as raised, full_disk_reported(tmp_path):
        raise OSError(errno.EIO, "broken")
    assert not isinstance(raised.value, RunFailedError)
