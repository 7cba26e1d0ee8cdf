"""The lock of a killed compiler is named, with its age and a remedy, and is not removed."""

import os
import subprocess
import sys
import time

import pytest

from harness.experiment.software import Software
from harness.measure.software_fit import lock_lines

NOW = time.time()
HELD = "import os, sys; os.open(sys.argv[1], os.O_RDONLY); print(flush=True); sys.stdin.read()"


@pytest.fixture(name="lock")
def _lock(tmp_path):
    """The lock of a compile that began two hours ago, in torch's place for the home folder ``tmp_path``."""
    lock = tmp_path / ".cache" / "torch_extensions" / "py312_cu130" / "share_storage_ext" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (NOW - 7200, NOW - 7200))
    return lock


def lines(version="0.19.2", **shell):
    return list(lock_lines(Software(megatron_core=version), {name: str(value) for name, value in shell.items()}, NOW))


def test_a_stale_lock_is_shown_with_its_path_its_age_and_a_remedy(lock, tmp_path):
    [line] = lines(HOME=tmp_path)
    assert (line.name, line.state) == ("extension share_storage_ext", "warning")
    assert line.found.startswith(f"{lock}: left 2 h ago, and no process of this machine holds it")
    assert line.remedy.endswith(f"rm {lock}")
    assert lock.exists()


def test_a_running_compile_is_ok(lock, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HELD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as compiling:
        compiling.stdout.readline()
        [line] = lines(HOME=tmp_path)
        compiling.stdin.close()
    assert (line.state, line.found) == ("ok", f"process {compiling.pid} has been compiling it for 2 h: {lock}")


def test_the_lock_is_searched_in_the_folders_of_the_shells_variables(lock, tmp_path):
    assert len(lines(XDG_CACHE_HOME=tmp_path / ".cache", HOME="/nowhere")) == 1
    assert len(lines(TORCH_EXTENSIONS_DIR=lock.parents[1], HOME="/nowhere")) == 1
    assert lines(TORCH_EXTENSIONS_DIR=tmp_path, HOME=tmp_path) == []


@pytest.mark.parametrize("version", [None, "0.16.1"])
def test_a_megatron_core_without_the_extension_has_no_line(lock, tmp_path, version):
    assert lines(version, HOME=tmp_path) == []
    assert lock.exists()
