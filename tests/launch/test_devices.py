"""What this machine has is asked in a child process, and every answer is an answer."""

import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.launch.detection import detect_gpus
from harness.launch.environment import this_host


@pytest.fixture
def answering(tmp_path, host):
    """A machine whose interpreter is a shell script; write its body to ``tmp_path / "answer"``."""
    path = tmp_path / "answer"
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return replace(host, python=str(path), shell={"PATH": "/usr/bin:/bin"})


def answer(host, body):
    Path(host.python).write_text(f"#!/bin/sh\n{body}\n")


def test_gpus_are_detected_with_the_type_that_fits(answering):
    gpus = '{"index": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-a", "total_bytes": 85899345920}'
    answer(answering, f"""echo '{{"driver": "570.1", "gpus": [{gpus}]}}'""")
    found = detect_gpus(answering)
    assert (found.driver, found.error, found.gpus[0].uuid) == ("570.1", None, "GPU-a")
    assert found.gpus[0].gpu_type is not None
    assert found.gpus[0].gpu_type.name == "h100"


def test_an_unknown_product_has_no_type(answering):
    answer(answering, """echo '{"gpus": [{"index": 0, "name": "NVIDIA Quantum 9000"}]}'""")
    assert detect_gpus(answering).gpus[0].gpu_type is None


def test_a_driver_that_hangs_does_not_hang_us(answering):
    answer(answering, "exec sleep 60")
    began = time.monotonic()
    found = detect_gpus(answering, timeout_s=0.3)
    assert (found.error, found.unanswered) == ("NVML did not answer within 0.3 s", True)
    assert time.monotonic() - began < 5


def test_a_crash_is_reported_with_its_last_line(answering):
    answer(answering, "echo one >&2; echo 'ModuleNotFoundError: pynvml' >&2; exit 1")
    assert detect_gpus(answering).error == "asking NVML failed with exit code 1: ModuleNotFoundError: pynvml"


def test_an_answer_that_is_no_listing_is_reported(answering):
    answer(answering, "echo hello")
    assert detect_gpus(answering).error == "NVML's answer cannot be read: hello\n"


def test_a_folder_of_the_same_name_does_not_answer_for_us(tmp_path, monkeypatch):
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert not detect_gpus(this_host()).unanswered


def test_a_machine_without_the_library_says_why():
    host = this_host()
    found = detect_gpus(replace(host, shell={**host.shell, "LD_LIBRARY_PATH": "/nonexistent"}))
    assert found.gpus or found.error
