"""The command as people call it: in this process for its answer, in one of its own where the process matters."""

import io
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from jsonschema.exceptions import best_match

from harness.app import main
from harness.cluster import controller, following
from harness.errors import BadRequestError
from harness.launch import detection
from harness.records.store import write_record
from harness.show.json import text
from harness.show.terminal import Console, print_page
from tests.native_libraries import scripted_nvml

ROOT = Path(__file__).parents[1]
REPLAYS = ROOT / "tests" / "data" / "replay"
SLURM_OUTPUT = ROOT / "tests" / "data" / "slurm" / "said"


def json_of(document):
    """Return the JSON of a document, read back."""
    return json.loads(text(document))


def piped(page):
    """Return the lines of a page as a pipe gets them."""
    out = io.StringIO()
    print_page(Console(file=out, highlight=False), page)
    return out.getvalue().splitlines()


def refused(call, *names, num=1):
    """The ``num`` problems of a call that is refused (None: some). Each of ``names`` is in what they say."""
    with pytest.raises(BadRequestError) as raised:
        call()
    problems, said = raised.value.problems, str(raised.value)
    assert [name for name in names if name not in said] == [], said
    assert num in (None, len(problems)), said
    return problems


_LOADED_FROM = {"LD_LIBRARY_PATH", "LD_PRELOAD", "FAKE_NVML_STATE"}
"""With these, a test has a driver of its own."""


@dataclass(frozen=True)
class Answer:
    """The exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def _looks():
    """What NVML answered in this session."""
    return {}


@pytest.fixture
def mbr_perf(capsys, monkeypatch, _looks):
    """Run the command line in this process. The GPUs of this machine are looked up once per session, which takes 0.2 s."""
    look = detection._detected

    def look_once(host, timeout_s):
        if host.python != sys.executable or _LOADED_FROM & host.shell.keys():
            return look(host, timeout_s)
        key = host.shell.get("PYTHONPATH")
        if key not in _looks:
            _looks[key] = look(host, timeout_s)
        return _looks[key]

    monkeypatch.setattr(detection, "_detected", look_once)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        if "--json" in arguments:
            _require_its_schema(arguments, captured.out)
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return run


def _require_its_schema(arguments, out):
    """Whatever a command prints with --json is a document of its schema, with no key that the schema lacks."""
    from tests.pinned_schemas import DOCUMENTS, validator

    typed = " ".join(map(str, arguments[:2]))
    command = typed if typed in DOCUMENTS else typed.split()[0]
    if command in DOCUMENTS:
        document = json.loads(out)
        assert next(iter(document)) == "schema_version"
        best = best_match(validator(command).iter_errors(document))
        assert best is None, f"{best.json_path}: {best.message[:500]}"


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A folder with the scripted libnvidia-ml.so.1."""
    return scripted_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def replay(mbr_perf, tmp_path):
    """Replay a recorded run, or a changed copy of one, into a results folder of its own."""

    def run(name, *arguments, folder=REPLAYS):
        gpu = "h100" if name in ("oom", "throttled") else "cpu"
        recorded = ("-mr", REPLAYS / "replayed.yaml", "-g", gpu, "--launcher", "replay", "--from", folder / name)
        return mbr_perf("run", *recorded, "--results_dir", tmp_path / "results", *arguments)

    return run


@pytest.fixture(scope="session")
def cpu_seconds():
    """CPU time of Python with arguments in a process of its own: the least of three, for other work disturbs the rest."""

    def measure(*arguments):
        used = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(used)

    return measure


@pytest.fixture(name="program")
def _program(tmp_path):
    """Write an executable script, of a shell unless another program is to read it. Returns its path."""

    def write(body, by="/bin/sh", name="python"):
        path = tmp_path / name
        path.write_text(f"#!{by}\n{body}\n")
        path.chmod(0o755)
        return str(path)

    return write


class FakeSlurm:
    """Scripts in a folder that stands first on PATH; every call is noted with its arguments."""

    def __init__(self, folder):
        self.folder = folder
        for command in ("sbatch", "scontrol", "squeue", "sacct", "scancel"):
            self.answers(command, "exit 0")
        self.answers("sbatch", "echo 7")
        self.answers("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")

    def answers(self, command, script):
        path = self.folder / command
        path.write_text(f'#!/bin/sh\necho {command} "$@" >> {self.folder}/calls\n{script}\n')
        path.chmod(0o755)

    def reports(self, recorded):
        self.answers("scontrol", f"cat {SLURM_OUTPUT}/{recorded}.scontrol")

    def calls(self, command):
        noted = self.folder / "calls"
        lines = noted.read_text().splitlines() if noted.exists() else []
        return [line for line in lines if line.split()[0] == command]

    def submissions(self):
        return [line for line in self.calls("sbatch") if "--test-only" not in line]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return FakeSlurm(folder)


@pytest.fixture
def impatient(monkeypatch):
    """Jobs are asked for often, and what a script did is visible at once."""
    monkeypatch.setattr(following, "LOOK_S", 0.02)
    monkeypatch.setattr(following, "SETTLE_S", 0.1)
    monkeypatch.setattr(controller, "LOOK_AFTER_S", (0.02,) * len(controller.LOOK_AFTER_S))


@pytest.fixture(name="run")
def _run(tmp_path, make_record):
    """A committed run with the given step time."""

    def write(name, seconds=2.5, **changes):
        run_dir = tmp_path / "results" / "runs" / name
        run_dir.mkdir(parents=True)
        write_record(run_dir, make_record(seconds=seconds, run_id=name, **changes))
        return str(run_dir)

    return write
