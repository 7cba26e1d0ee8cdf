"""A folder of a sweep or a night is worked in by one process, and must be writable."""

import errno
import shutil

import pytest

from harness.batch.engine import _not_writable, holding
from harness.errors import BadRequestError, RunFailedError
from harness.launch.processes import is_held


def test_a_folder_in_which_nothing_can_be_written_is_refused_with_the_reason(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(BadRequestError, match="sweep: Is a directory"), holding(tmp_path, "sweep"):
        pass


def test_a_second_worker_is_refused(tmp_path):
    with (
        holding(tmp_path, "sweep"),
        pytest.raises(BadRequestError, match="still running"),
        holding(tmp_path, "sweep"),
    ):
        pass


def test_a_folder_is_held_until_its_work_ends_and_other_nodes_see_both(tmp_path):
    with holding(tmp_path, "sweep"):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_stops_a_night_with_the_command_that_continues_it(tmp_path):
    with pytest.raises(RunFailedError, match="disk full: ") as caught, holding(tmp_path, "night"):
        raise FULL
    assert caught.value.remedy.endswith(f": mbr-perf nightly --resume {tmp_path}")


def test_a_folder_on_a_full_disk_needs_space_not_permissions(tmp_path):
    full = _not_writable(tmp_path, "sweep", FULL)
    assert isinstance(full, RunFailedError)
    assert full.remedy.startswith("free space")


def test_a_deleted_folder_is_not_to_be_resumed(tmp_path):
    with pytest.raises(RunFailedError, match="was deleted") as caught, holding(tmp_path, "night"):
        _read_after_deletion(tmp_path)
    assert "--resume" not in caught.value.remedy


def _read_after_deletion(folder):
    shutil.rmtree(folder)
    (folder / "night.json").read_text()
