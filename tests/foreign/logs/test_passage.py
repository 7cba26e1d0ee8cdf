"""How compressed logs and pipes are read, and how the reading is ended."""

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.foreign.logs.lines import log_lines
from harness.foreign.logs.sources import Passage
from tests.imports.logs import bridge_log


def test_of_a_compressed_file_that_was_cut_short_the_beginning_is_read_with_a_note(tmp_path):
    text = "".join(f"line {number}\n" for number in range(20_000)).encode()
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text)[:-9000])
    passage = Passage()
    lines = [line.text for line in log_lines([tmp_path / "a.log.gz"], passage=passage)]
    assert lines[:2] == ["line 0", "line 1"] and 1000 < len(lines) < 20_000
    assert "a.log.gz" in passage.notes[0]


def test_a_folder_has_its_compressed_logs_but_not_beside_the_same_log_in_plain_text(tmp_path):
    (tmp_path / "rank_0.log").write_text("plain\n")
    (tmp_path / "rank_0.log.gz").write_bytes(gzip.compress(b"copy\n"))
    (tmp_path / "rank_1.log.gz").write_bytes(gzip.compress(b"packed\n"))
    assert [(line.text, line.rank) for line in log_lines([tmp_path])] == [("plain", 0), ("packed", 1)]


def test_reading_a_silent_pipe_can_be_stopped(monkeypatch):
    reading, writing = os.pipe()
    os.write(writing, b"one\n")
    passage = Passage()
    threading.Timer(0.3, setattr, (passage, "is_stopped", True)).start()
    with os.fdopen(reading) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert [line.text for line in log_lines(["-"], passage)] == ["one"]
    os.close(writing)


def test_waiting_for_the_writer_of_a_named_pipe_can_be_stopped(tmp_path):
    os.mkfifo(tmp_path / "p")
    passage = Passage()
    threading.Timer(0.3, setattr, (passage, "is_stopped", True)).start()
    assert not list(log_lines([tmp_path / "p"], passage=passage))


def test_a_named_pipe_whose_writer_comes_later_is_read_whole(tmp_path):
    os.mkfifo(tmp_path / "p")
    threading.Timer(0.3, (tmp_path / "p").write_text, ("one\ntwo\n",)).start()
    assert [line.text for line in log_lines([tmp_path / "p"])] == ["one", "two"]


def _in_a_shell(folder, line):
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-c", line], check=False, cwd=folder, capture_output=True, text=True, timeout=60, env=env
    )


@pytest.mark.slow
def test_a_pipe_of_the_shell_is_read_as_a_log(tmp_path):
    (tmp_path / "a.log").write_text("KeyError: 'seven'\n")
    done = _in_a_shell(tmp_path, "mbr-perf diagnose <(cat a.log)")
    assert "KeyError: 'seven'" in done.stdout
    assert done.returncode == 0


@pytest.mark.slow
def test_a_pipe_of_the_shell_is_compared_as_the_file_behind_it(tmp_path):
    tflops = [30.0] + [700.0] * 49
    (tmp_path / "a.log").write_text(bridge_log(tflops))
    steps = {str(step): {"GPU utilization": value} for step, value in enumerate(tflops)}
    (tmp_path / "g.json").write_text(json.dumps(steps))
    piped, plain = (_in_a_shell(tmp_path, f"mbr-perf compare {log} g.json --json") for log in ("<(cat a.log)", "a.log"))
    judged = [json.loads(done.stdout) for done in (piped, plain)]
    assert judged[0]["outcome"] == judged[1]["outcome"] == "pass"
    assert piped.returncode == plain.returncode == 0


@pytest.mark.slow
def test_a_pipe_of_the_shell_is_refused_as_a_file_that_is_read_more_than_once(tmp_path):
    (tmp_path / "train.sh").write_text("--num-layers 4\n")
    done = _in_a_shell(tmp_path, "mbr-perf plan -g h100 --megatron_args <(cat train.sh)")
    assert "/dev/fd/" in done.stderr
    assert "a pipe or a device, not a file" in done.stderr
    assert done.returncode == 2
