"""Damaged and hostile snapshots are summarised or refused in words, whatever is in them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fuzzed(seconds: float, seed: int) -> str:
    command = [sys.executable, "-m", "tests.runner.snapshot_fuzz", str(seconds), str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_second_of_damaged_snapshots():
    assert "summarised" in fuzzed(1, 1)


@pytest.mark.long
def test_minutes_of_damaged_snapshots():
    assert "summarised" in fuzzed(150, 1_000_000)
