import pytest

from harness.failures.first_failure import first_failure
from harness.foreign.logs.lines import log_lines


@pytest.fixture(name="first")
def _first(tmp_path):
    """Return the first failure of a log with the given lines."""

    def build(*lines):
        (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
        return first_failure(log_lines([tmp_path / "train.log"]))

    return build
