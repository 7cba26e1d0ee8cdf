"""`mbr-perf diagnose` on runs without a record: what their ranks left, and how mbr-perf itself ended; Ctrl-C while it reads."""

import json
import re
import signal
import subprocess
import sys

import pytest

from harness.diagnose.run import stopped_by_ctrl_c
from harness.foreign.logs.sources import Passage
from harness.launch.processes import claim
from harness.records.rank import OWNER, Failure, Heartbeat
from tests.diagnose.conftest import FULL

CLAIM = "import sys, time; from pathlib import Path; from harness.launch.processes import claim; claim(Path(sys.argv[1])); time.sleep(600)"


@pytest.fixture(name="begun")
def _begun(tmp_path, make_spec):
    """A run folder on two CPU ranks; rank 0 finished two steps of ten, rank 1 one step."""

    def build(**ranks):
        folder = tmp_path / "a"
        (folder / "ranks").mkdir(parents=True)
        (folder / "spec.json").write_text(make_spec(gpu="cpu").model_dump_json())
        for rank, steps in ((0, 2), (1, 1)):
            beats = [Heartbeat(time_s=1.76e9 + step, phase="step", step=step, seconds=1.0) for step in range(steps)]
            text = "".join(beat.model_dump_json() + "\n" for beat in beats)
            (folder / "ranks" / f"rank_{rank:03d}.progress.jsonl").write_text(text)
        for name, record in ranks.items():
            (folder / "ranks" / f"{name}.json").write_text(record.model_dump_json())
        return folder

    return build


@pytest.fixture(name="killed")
def _killed():
    """A process claims the folder and is killed."""

    def kill(folder):
        with subprocess.Popen([sys.executable, "-c", CLAIM, folder]) as process:
            while not (folder / OWNER).is_file():
                assert process.poll() is None
            process.kill()
        return process.pid

    return kill


def test_a_killed_mbr_perf_is_named_with_the_rank_of_least_progress(mbr_perf, begun, killed):
    folder = begun()
    pid = killed(folder)
    answer = mbr_perf("diagnose", folder, "--no_plan", "-v")
    first, *_, last = answer.out.splitlines()
    assert (answer.code, first[:15], f" {pid}" in first) == (0, "Killed (high): ", True)
    assert re.search("rank 1, step 1 of 10; .*: 2025-10-09T08:53:20Z", last)
    assert json.loads(mbr_perf("diagnose", folder, "--no_plan", "--json").out)["job"]["status"] == "failed"


def test_a_run_that_has_not_ended_is_inconclusive(mbr_perf, begun):
    folder = begun()
    claim(folder)
    answer = mbr_perf("diagnose", folder, "--no_plan")
    assert (answer.code, answer.out.startswith("Unknown: ")) == (6, True)
    document = json.loads(mbr_perf("diagnose", folder, "--no_plan", "--json").out)
    assert (document["verdict"]["class"], document["job"]["status"]) == (None, "unknown")
    (progress,) = document["job"]["notes"]
    assert "rank 1, step 1 of 10" in progress and "hang" not in json.dumps(document)


def test_a_run_that_no_process_claimed_is_diagnosed_by_its_ranks(mbr_perf, begun, make_rank, make_spec):
    oom = Failure(kind="oom", message=FULL, phase="forward_backward", step=2)
    rank = make_rank(make_spec(gpu="cpu"), 1, steps=(), failure=oom, finished=False)
    document = json.loads(mbr_perf("diagnose", begun(rank_001=rank), "--no_plan", "--json").out)
    verdict = document["verdict"]
    assert (verdict["is_oom"], verdict["rank"], verdict["when"]) == (True, 1, "in forward_backward of step 2")
    assert "harness.json" in document["job"]["notes"][0]


def test_a_folder_in_which_nothing_has_begun_is_refused(mbr_perf, tmp_path, make_spec):
    (tmp_path / "spec.json").write_text(make_spec(gpu="cpu").model_dump_json())
    answer = mbr_perf("diagnose", tmp_path, "--no_plan")
    assert (answer.code, str(tmp_path) in answer.err) == (2, True)


# Progress is shown after 0.1 s instead of 5.
DIAGNOSE = "from harness.show import progress; progress._FIRST_S = 0.1; from harness.app import main; main(['diagnose', '-', '--json'])"


@pytest.mark.slow
def test_after_ctrl_c_the_answer_uses_the_logs_read_so_far():
    command = [sys.executable, "-c", DIAGNOSE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(f"{FULL}\n".encode())
        process.stdin.flush()
        assert b"read 0 MB" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        document = json.loads(process.stdout.read())
    assert (process.returncode, document["exit_code"], document["verdict"]["class"]) == (130, 130, "capacity")
    assert document["evidence"][0].startswith("Interrupted: ")


class EndedError(Exception):
    """Stands in for KeyboardInterrupt, which would end the other tests too."""


def end(_number, _frame):
    raise EndedError


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _handler():
    """Make Ctrl-C end the program, as outside of the reading."""
    before = signal.signal(signal.SIGINT, end)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_stops_the_reading_and_the_second_ends_the_program():
    passage = Passage(num_bytes=2_500_000)
    with stopped_by_ctrl_c(passage):
        ctrl_c()
        assert passage.is_stopped
        with pytest.raises(EndedError):
            ctrl_c()
    assert len(passage.notes) == 1
    assert "2.5 MB" in passage.notes[0]
