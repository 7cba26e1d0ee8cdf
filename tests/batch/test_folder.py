"""A folder of a sweep or a night is worked in by one process, and must be writable."""

import pytest

from harness.batch.engine import holding
from harness.errors import BadRequestError


def test_a_folder_in_which_nothing_can_be_written_is_refused_with_the_reason(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(BadRequestError, match="cannot run the sweep: Is a directory"), holding(tmp_path, "sweep"):
        pass


def test_a_second_worker_is_refused(tmp_path):
    with (
        holding(tmp_path, "sweep"),
        pytest.raises(BadRequestError, match="still running"),
        holding(tmp_path, "sweep"),
    ):
        pass
