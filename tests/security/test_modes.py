"""Whatever the shell's umask: other users can neither read nor write what a command leaves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.folders import closed_to_others

ROOT = Path(__file__).parents[2]
REPLAYS = ROOT / "tests" / "data" / "replay"


@pytest.mark.slow
def test_a_shell_that_closes_nothing_leaves_nothing_open(tmp_path: Path) -> None:
    results = tmp_path / "results"
    recorded = ("-mr", REPLAYS / "replayed.yaml", "-g", "cpu", "--launcher", "replay", "--from", REPLAYS / "ok")
    command = [sys.executable, "-m", "harness.app", "run", *map(str, recorded), "--results_dir", str(results)]
    done = subprocess.run(command, cwd=ROOT, umask=0, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    left = [results, *results.rglob("*")]
    assert len(left) > 5
    assert {str(path): oct(path.stat().st_mode) for path in left if path.stat().st_mode & 0o007} == {}
    (run_dir,) = (results / "runs").iterdir()
    assert run_dir.stat().st_mode & 0o777 == 0o750


def test_the_umask_of_a_caller_comes_back() -> None:
    before = os.umask(0o002)
    try:
        with closed_to_others():
            assert os.umask(0o007) == 0o007
        assert os.umask(0o002) == 0o002
    finally:
        os.umask(before)
