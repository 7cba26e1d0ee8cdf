"""The command as people call it: in this process for its answer, in one of its own where the process matters."""

import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.cli.app import main

ROOT = Path(__file__).parents[2]
REPLAYS = ROOT / "tests" / "data" / "replay"


@dataclass(frozen=True)
class Answer:
    """What a command left: exit code, answer, narration."""

    code: int
    out: str
    err: str


@pytest.fixture
def mbr_perf(capsys):
    """Run the command line in this process."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        told = capsys.readouterr()
        return Answer(int(ended.value.code or 0), told.out, told.err)

    return run


@pytest.fixture
def replay(mbr_perf, tmp_path):
    """Replay a recorded run, or a changed copy of one, into a results folder of its own."""

    def run(name, *arguments, folder=REPLAYS):
        gpu = "h100" if name in ("oom", "throttled") else "cpu"
        recorded = ("-mr", REPLAYS / "replayed.yaml", "-g", gpu, "--launcher", "replay", "--from", folder / name)
        return mbr_perf("run", *recorded, "--results_dir", tmp_path / "results", *arguments)

    return run


@pytest.fixture
def cpu_seconds():
    """CPU time of the command in a process of its own: the least of three, for other work disturbs the rest."""

    def measure(*arguments):
        used = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, "-m", "harness.cli.app", *arguments], cwd=ROOT, capture_output=True, check=False
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(used)

    return measure
