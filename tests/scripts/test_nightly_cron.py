"""The crontab fragment and the batch script of a night do what they say, with what cron and Slurm give them."""

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="cron")
def _cron(tmp_path):
    """Run the first entry as cron would: with the variables of the file, ``\\%`` as ``%``, and by its shell."""
    lines = (ROOT / "scripts" / "nightly.cron").read_text().splitlines()
    entries = [line.split(maxsplit=5)[5] for line in lines if line[:1].isdigit()]
    variables = dict(line.split("=", 1) for line in lines if line[:1].isalpha())

    def run(nightly):
        given = {**variables, "CHECKOUT": str(ROOT), "NIGHTLY": nightly, "HOME": str(tmp_path)}
        return subprocess.run([variables["SHELL"], "-c", entries[0].replace("\\%", "%")], env=given, cwd=tmp_path,
                              capture_output=True, text=True, check=False)  # fmt: skip

    return run


def logged(tmp_path):
    return "".join(path.read_text() for path in (tmp_path / "mbr-perf-nightly").glob("*.log"))


@pytest.mark.slow
def test_a_green_night_is_silent_and_its_log_is_kept(cron, tmp_path):
    assert cron("cpu_smoke --dryrun").stdout == ""
    assert "4 cases; 4 runs" in logged(tmp_path)


@pytest.mark.slow
def test_what_goes_wrong_is_reported_in_one_line_that_names_the_log(cron, tmp_path):
    (output,) = cron("no_such_suite").stdout.splitlines()
    assert output.startswith("mbr-perf nightly ended with 2 ")
    assert Path(output.split(": ")[-1]).read_text() == logged(tmp_path)


def test_two_nights_never_overlap(cron, tmp_path):
    (tmp_path / "mbr-perf-nightly").mkdir()
    with (tmp_path / "mbr-perf-nightly" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cron("cpu_smoke --dryrun").stdout.startswith("mbr-perf nightly ended with 75 ")
    assert logged(tmp_path) == ""


SCRIPT = ROOT / "scripts" / "nightly.sbatch"


def run_as_slurm_does(tmp_path, *arguments):
    given = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SLURM_SUBMIT_DIR": str(ROOT)}
    return subprocess.run(
        ["/bin/bash", SCRIPT, *arguments], env=given, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


@pytest.mark.slow
def test_it_plans_a_job_for_every_case(tmp_path):
    done = run_as_slurm_does(tmp_path, "cpu_smoke", "--time_limit", "20", "--dryrun")
    assert (done.returncode, "4 cases; 4 runs" in done.stdout) == (0, True)


@pytest.mark.slow
def test_the_exit_code_of_the_night_is_that_of_the_job(tmp_path):
    done = run_as_slurm_does(tmp_path, "cpu_smoke", "--dryrun")
    assert done.returncode == 2
    assert ("--time_limit" in done.stderr, "--launcher" in done.stderr) == (True, False)


def test_the_job_does_not_run_beside_another_night_and_gets_a_signal_before_it_ends():
    text = SCRIPT.read_text()
    assert "#SBATCH --dependency=singleton\n" in text
    assert "#SBATCH --signal=B:TERM@" in text
