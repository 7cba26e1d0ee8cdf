"""Whatever is fed to the readers of logs, out-of-memory texts, golden files and snapshots: an answer or a refusal in words."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import TARGETS

ROOT = Path(__file__).parents[1]
_GRACE_S = 360.0  # imports; of what broke a reader, hypothesis looks for the smallest for up to five minutes


def num_inputs(target: str, seconds: float, seed: int) -> int:
    command = [sys.executable, "-m", "tests.fuzz", target, str(seconds), str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + _GRACE_S, check=False)
    assert done.returncode == 0, f"{done.stderr[:200]}\n...\n{done.stderr[-3000:]}"
    return int(done.stdout)


@pytest.mark.slow
def test_a_second_of_damaged_snapshots():
    assert num_inputs("snapshots", 1, 1) > 10


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_minutes_of_anything(target, pytestconfig, record_property):
    seconds = pytestconfig.getoption("--fuzz_seconds") / len(TARGETS)
    count = num_inputs(target, seconds, random.randrange(10**9))
    record_property("fuzzed", f"{target}: {count} inputs in {seconds:.0f} s")
    assert count > 10
