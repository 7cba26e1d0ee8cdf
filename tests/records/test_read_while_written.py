"""What a command is about to write is read while half of it is on disk: the old or the new, never half of it."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.commands import REPLAYS, ROOT
from tests.native_libraries import compiled

pytestmark = pytest.mark.slow


@pytest.fixture(name="halted")
def _halted(tmp_path):
    """Calls ``look`` whenever ``mbr-perf`` has written half of something below ``folder``, and once after it ended well."""
    library = compiled("halved_write.c", tmp_path / "halved_write.so", "-ldl")

    def run(folder, look, *words):
        command = [sys.executable, "-m", "harness.app", *map(str, words)]
        env = {**os.environ, "LD_PRELOAD": str(library), "HALVE_BELOW": str(folder)}
        seen = []
        with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) as process:
            try:
                while os.WIFSTOPPED(status := os.waitpid(process.pid, os.WUNTRACED)[1]):
                    seen.append(look())
                    process.send_signal(signal.SIGCONT)
                process.returncode = os.waitstatus_to_exitcode(status)
            finally:
                process.kill()
        assert process.returncode == 0
        return [*seen, look()]

    return run


def test_a_golden_is_the_old_one_until_it_is_the_new_one(mbr_perf, run, halted, tmp_path):
    folder = tmp_path / "golden"
    promotion = ("golden", "promote", "--author", "someone", "--golden_dir", folder, "--reason")
    assert mbr_perf(*promotion, "first", run("a")).code == 0
    (golden,) = folder.rglob("*.json")

    def look():
        return json.loads(mbr_perf("golden", "show", golden, "--golden_dir", folder, "--json").out)["golden"]["reason"]

    assert halted(folder, look, *promotion, "second", run("b")) == ["first", "second"]


def test_a_record_is_not_there_until_it_is_whole(mbr_perf, halted, tmp_path):
    results = tmp_path / "results"

    def look():
        (run_dir,) = (results / "runs").iterdir()
        return mbr_perf("compare", run_dir, "--json").code, (run_dir / "record.json").exists()

    recorded = ("-mr", REPLAYS / "replayed.yaml", "-g", "cpu", "--launcher", "replay", "--from", REPLAYS / "ok")
    *before, after = halted(results, look, "run", *recorded, "--results_dir", results)
    assert set(before) == {(2, False)}
    assert after == (0, True)
