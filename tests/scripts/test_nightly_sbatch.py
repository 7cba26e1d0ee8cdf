"""The batch script of a night does what it says, from the folder that it was submitted from."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "nightly.sbatch"


def run_as_slurm_does(tmp_path, *arguments):
    given = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SLURM_SUBMIT_DIR": str(ROOT)}
    return subprocess.run(
        ["/bin/bash", SCRIPT, *arguments], env=given, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


def test_it_plans_a_job_for_every_case(tmp_path):
    done = run_as_slurm_does(tmp_path, "cpu_smoke", "--time_limit", "20", "--dryrun")
    assert (done.returncode, "4 cases; 4 runs" in done.stdout) == (0, True)


def test_the_exit_code_of_the_night_is_that_of_the_job(tmp_path):
    done = run_as_slurm_does(tmp_path, "cpu_smoke", "--dryrun")
    assert done.returncode == 2
    assert ("--time_limit" in done.stderr, "--launcher" in done.stderr) == (True, False)


def test_the_job_does_not_run_beside_another_night_and_gets_a_signal_before_it_ends():
    text = SCRIPT.read_text()
    assert "#SBATCH --dependency=singleton\n" in text
    assert "#SBATCH --signal=B:TERM@" in text
