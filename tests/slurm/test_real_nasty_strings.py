"""Two hundred strings made to break out of quotes: each is refused, or is in the job byte for byte; none is ever run."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.launch.environment import Host
from harness.launch.slurm_job import slurm_job
from harness.records.job import SlurmOptions, read_job
from harness.records.redact import redact
from tests.cluster.conftest import job_record

CANARY, DOS = "canary", "\r\n"
PARTS = (
    "'", '"', "`touch canary`", "$(touch canary)", "${IFS}", "; touch canary", "\ntouch canary\n", "\n#SBATCH --wrap=x\n",
    "&& touch canary #", "| touch canary", "> canary", "\\", "\\\\'", "%j", "%A_%a", "$HOME", "!!", "*", "?", "[a-z]", "~",
    "{a,b}", "\t", " ", "  ", "\r\n", "\x1b[31m", "\x7f", "é", "漢字", "\u202e", "--export=ALL", "-x", "a=b", "a,b", "a:b",
    "#", "EOF", "\nEOF\n", "'\"'\"'", "$'\\x41'", "\v", "x" * 200, ")", "(", "<(touch canary)", "name",
)  # fmt: skip
OF_ONE_LINE = ("partition", "account", "qos", "reservation", "constraint")


def nasty_strings():
    """Every part alone, then sequences of them; the same ones in every run."""
    chosen, strings = random.Random(20260101), list(PARTS)
    while len(strings) < 200:
        string = "".join(chosen.choices(PARTS, k=chosen.randint(2, 5)))
        if string not in strings:
            strings.append(string)
    return strings


NASTY = nasty_strings()


@pytest.mark.slow
def test_what_a_shell_or_a_request_holds_arrives_in_a_real_job_as_it_is(slurm, results, tmp_path, program):
    """In variables of the shell, which the batch file exports; in ``-E``, a path and passed values, which it does not."""
    noting = f"env -0 > {tmp_path}/env.$SLURM_NODEID\nprintf '%s\\0' \"$@\" > {tmp_path}/words"
    spy = program(noting, name='it\'s a "spy" $(touch canary)')
    shell = {f"NCCL_NASTY_{number}": value for number, value in enumerate(NASTY) if DOS not in value}
    passed = {f"PASSED_{number}": value for number, value in enumerate(NASTY[:60])}
    asked = [word for number, value in enumerate(NASTY) for word in ("-E", f"NASTY_{number}={value}")]
    by_name = [word for name in passed for word in ("--pass_env", name)]
    done = slurm.mbr_perf(
        *results.run(*asked, *by_name, "--slurm_python", spy, "--detach"), shell=shell | passed
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert slurm.ended(results.job_id())["JobState"] == "COMPLETED"
    arguments = (tmp_path / "words").read_text().split("\0")
    assert arguments[:4] == ["-m", "harness.cluster.task", "--job_dir", str(results.jobs[0])]
    job = read_job(Path(arguments[3]))
    assert {f"NASTY_{number}": value for number, value in enumerate(NASTY)} == job.runs[0].spec.env
    for node in ("0", "1"):
        entries = (tmp_path / f"env.{node}").read_bytes().decode().split("\0")
        there = dict(entry.split("=", 1) for entry in entries if entry)
        assert {name: value for name, value in shell.items() if redact(value) == value} == {
            name: value for name, value in there.items() if name.startswith("NCCL_NASTY_")
        }
        assert passed == {name: value for name, value in there.items() if name.startswith("PASSED_")}
    script = (results.jobs[0] / "job.sbatch").read_text()
    assert "PASSED_" not in script
    assert not any(Path(folder, CANARY).exists() for folder in (Path.cwd(), tmp_path, results.jobs[0], Path.home()))


@pytest.mark.slow
def test_a_variable_that_slurm_takes_for_a_file_of_dos_is_refused_in_its_words(slurm, results):
    done = slurm.mbr_perf(*results.run("--detach"), shell={"NCCL_NASTY": f"a{DOS}b"})
    assert (done.returncode, "DOS line breaks" in done.stderr) == (2, True)
    assert results.runs == []


@pytest.fixture
def host(tmp_path):
    """A shell whose srun writes down its words instead of starting anything."""
    spies = tmp_path / "spies"
    spies.mkdir()
    scripts = {"srun": f"printf '%s\\0' \"$@\" > {tmp_path}/words", "scontrol": "echo n1 NodeAddr=127.0.0.1 x"}
    for name, script in scripts.items():
        (spies / name).write_text(f"#!/bin/sh\n{script}\n")
        (spies / name).chmod(0o755)
    return Host(sys.executable, "login", 2, {"PATH": f"{spies}:{os.environ['PATH']}"})


def job_of(host, job_dir="/r/jobs/JOB", name="job", **slurm):
    """The job of a request; ``slurm``: what Slurm is asked for."""
    return slurm_job(job_record(job_dir, name=name, options=SlurmOptions(time_limit_minutes=5, **slurm)), host)


def is_refused(host, **fields):
    try:
        job_of(host, **fields)
    except BadRequestError:
        return True
    return False


def directives(script):
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]


@pytest.mark.parametrize("field", OF_ONE_LINE)
def test_a_directive_is_refused_or_holds_the_string_and_nothing_else_changes(host, field):
    plain, taken = directives(job_of(host).render()), 0
    for value in NASTY:
        if not is_refused(host, **{field: value}):
            lines = directives(job_of(host, **{field: value}).render())
            assert [line for line in lines if line not in plain] == [f"#SBATCH --{field}={value}"]
            taken += 1
    assert 0 < taken < 40
    assert not is_refused(host, **{field: "name"})


@pytest.mark.parametrize("field", ["job_dir", "name"])
def test_a_folder_or_a_name_is_refused_unless_a_batch_file_can_hold_it(host, field):
    start = "/r/" if field == "job_dir" else ""
    taken = [value for value in NASTY if not is_refused(host, **{field: start + value})]
    assert "name" in taken
    assert all(value.isascii() and not set(value) & set(" '\"`$\\;|&<>*?[](){}!#%\n\r\t\v\x1b\x7f") for value in taken)


@pytest.mark.slow
def test_words_of_the_containers_and_of_python_reach_srun_as_they_are(host, tmp_path):
    """Every word that is taken, in one go: the image and the Python change, all mounts stand in one list."""
    pairs = (f"/here{v}:/there{v}" for v in NASTY)
    mounts = tuple(v for v in pairs if not is_refused(host, container_image="image", container_mounts=(v,)))
    assert len(mounts) > 60
    for value in NASTY:
        words = {"container_image": value, "python": value}
        if is_refused(host, **words):
            assert not value.isprintable()
            continue
        script = job_of(host, container_mounts=mounts, **words).render()
        subprocess.run(["/bin/bash"], input=script, env={}, cwd=tmp_path, text=True, timeout=20, check=True)
        arguments = (tmp_path / "words").read_text().split("\0")
        assert f"--container-image={value}" in arguments
        [listed] = [word for word in arguments if word.startswith("--container-mounts=")]
        assert listed.endswith(",".join(mounts))
        assert arguments[arguments.index("-m") - 1] == value
    assert not (tmp_path / CANARY).exists()
