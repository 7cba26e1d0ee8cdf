"""What this machine has is asked in a child process; full disks, and folders that are deleted, replaced or closed."""

import errno
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import RunFailedError
from harness.launch.detection import detect_gpus
from harness.launch.environment import Host, this_host
from harness.launch.machine import installed_software, settled_gpu, software_for
from harness.launch.required import require_machine
from harness.records.disk import disk_faults_reported, free_bytes, require_room
from tests.commands import refused

H100, B200 = "NVIDIA H100 80GB HBM3", "NVIDIA B200"


@pytest.fixture
def answering(program):
    """A machine whose interpreter is a shell script of this body."""
    shell = {"PATH": "/usr/bin:/bin"}
    return lambda body: Host(python=program(body), hostname="node0", num_cores=8, shell=shell)


@pytest.fixture
def machine(answering):
    """A machine whose NVML lists GPUs of these product names."""

    def build(*names):
        gpus = [{"index": i, "name": name, "uuid": f"GPU-{i}"} for i, name in enumerate(names)]
        return answering(f"echo '{json.dumps({'driver': '550.54.15', 'gpus': gpus})}'")

    return build


def test_gpus_are_detected_with_the_type_that_fits(machine):
    found = detect_gpus(machine(H100, "NVIDIA Quantum 9000"))
    assert (found.driver, found.error, found.gpus[0].uuid) == ("550.54.15", None, "GPU-0")
    assert (found.gpus[0].gpu_type.name, found.gpus[1].gpu_type) == ("h100", None)


@pytest.mark.parametrize(
    ("body", "error", "unanswered"),
    [
        ("exec sleep 60", " 1 s", True),
        ("echo one >&2; echo 'no pynvml' >&2; exit 1", "exit code 1: no pynvml", False),
        ("echo hello", ": hello\n", False),
    ],
)
def test_a_driver_that_gives_no_answer_is_reported(answering, body, error, unanswered):
    began = time.monotonic()
    found = detect_gpus(answering(body), timeout_s=1.0)
    assert found.error.endswith(error) and found.unanswered >= unanswered
    assert time.monotonic() - began < 5


def test_a_folder_of_the_same_name_does_not_answer_for_us_and_a_missing_library_says_why(tmp_path, monkeypatch):
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    host = this_host()
    found = detect_gpus(replace(host, shell={**host.shell, "LD_LIBRARY_PATH": "/nonexistent"}))
    assert not found.unanswered and (found.gpus or found.error)


def test_the_gpu_of_this_machine_is_taken_when_none_is_asked_for(machine):
    gpu, why = settled_gpu(machine(H100, H100))
    assert gpu == "h100" and f" {H100} (NVML)" in why
    assert settled_gpu(machine())[0] == "cpu"


@pytest.mark.parametrize("names", [("NVIDIA Quadro P400",), (H100, B200), (H100, "NVIDIA Quadro P400")])
def test_a_gpu_that_is_not_known_is_not_guessed_at(machine, names):
    refused(lambda: settled_gpu(machine(*names)), *names)


def test_ranks_need_as_many_gpus_of_the_type_that_was_asked_for(machine, make_spec):
    require_machine(make_spec(), machine(*[H100] * 8), 8)
    require_machine(make_spec(gpu="cpu"), machine(), 2)
    refused(lambda: require_machine(make_spec(), machine(H100, H100), 8), ": 8; it has 2")
    refused(lambda: require_machine(make_spec(), machine(*[B200] * 8), 8), "--gpu h100, ", B200, "--point_gpu h100")


def test_muon_is_refused_without_its_package(machine, make_spec, monkeypatch):
    monkeypatch.setitem(sys.modules, "emerging_optimizers", None)
    spec = make_spec(gpu="cpu", optimizer={"optimizer": "muon", "use_distributed_optimizer": False})
    refused(lambda: require_machine(spec, machine(), 2), "emerging-optimizers", "pip install 'emerging-optimizers")


WITHOUT_TE = pytest.mark.skipif(
    installed_software().transformer_engine is not None, reason="transformer-engine is here"
)


@WITHOUT_TE
def test_transformer_engine_is_assumed_only_where_the_job_runs_elsewhere(machine):
    elsewhere, notes = software_for("h100", machine())
    assert (elsewhere.transformer_engine is not None, elsewhere.assumed, len(notes)) == (True, True, 1)
    assert not software_for("h100", machine(), f"transformer-engine={elsewhere.transformer_engine}")[0].assumed
    here, notes = software_for("h100", machine(H100))
    assert (here.transformer_engine, notes) == (None, ())
    assert software_for("cpu", machine()) == (installed_software(), ())
    assumed, notes = software_for("h100", machine(), "torch=2.8.0,megatron-core=0.15.0")
    assert (assumed.torch, assumed.megatron_core) == ("2.8.0", "0.15.0") and "--assume" in notes[0]


@WITHOUT_TE
def test_a_machine_with_unknown_gpus_is_noted_in_a_plan_and_starts_nothing(machine, answering, make_spec):
    silent = answering("echo 'no answer' >&2; exit 139")
    planned, notes = software_for("h100", silent)
    assert " h100 " in notes[0] and "exit code 139: no answer): transformer-engine " in notes[0]
    refused(lambda: software_for("h100", silent, must_answer=True)[0], " h100: ", "exit code 139: no answer")
    refused(lambda: require_machine(make_spec(), silent, 8, planned), "no answer")
    assert software_for("cpu", silent, must_answer=True)[0] == installed_software()
    refused(lambda: require_machine(make_spec(), machine(*[H100] * 8), 8, planned), "transformer-engine ")
    assert software_for("h100", machine(H100), must_answer=True)[0].transformer_engine is None
    assert software_for("h100", machine(), must_answer=True)[0] == software_for("h100", machine())[0]


MIB = 1024**2


def test_too_little_room_is_refused_before_the_start(tmp_path):
    require_room(tmp_path, 64 * MIB)
    with pytest.raises(RunFailedError, match=r"disk full: 63.00 MiB free for .*, 64.00 MiB needed"):
        require_room(tmp_path, 63 * MIB)
    assert free_bytes(tmp_path) > free_bytes(Path("/proc")) == 0


def taken(folder, act):
    """The message of the fault that ``act`` meets in a folder."""
    with pytest.raises(RunFailedError) as raised, disk_faults_reported(folder):
        act()
    return raised.value.message


def failing(*of_the_system):
    def act():
        raise OSError(*of_the_system)

    return act


def test_the_file_or_folder_that_finds_no_room_is_named_wherever_it_is(tmp_path):
    cached = tmp_path / "cache" / "prediction.json"
    for number in (errno.ENOSPC, errno.EDQUOT):
        assert taken(tmp_path, failing(number, "no room")).startswith(f"disk full: cannot write in {tmp_path}")
        said = taken(tmp_path / "sweep", failing(number, "no room", str(cached)))
        assert said == f"disk full: cannot write {cached}"


def test_a_folder_that_was_taken_away_or_closed_is_named(tmp_path):
    run, ranks = tmp_path / "run", tmp_path / "run" / "ranks"

    def write():
        (ranks / "x.json").write_text("")

    said = taken(run, write)
    assert said.startswith(f"{run}: ") and "deleted" in said
    run.mkdir()
    assert taken(run, write).startswith(f"{ranks}: ")
    ranks.write_text("a file")
    said = taken(run, write)
    assert said.startswith(f"{ranks}: ") and "replaced" in said
    closed = errno.EACCES, "Permission denied"
    own = tmp_path / "record.json"
    assert taken(tmp_path, failing(*closed, str(own))).startswith(f"{own}: ")


def test_other_faults_and_files_that_are_only_missing_stay_errors(tmp_path):
    with pytest.raises(OSError, match="broken"), disk_faults_reported(tmp_path):
        raise OSError(errno.EIO, "broken")
    for missing in (tmp_path / "missing.json", tmp_path.parent / "elsewhere.json"):
        with pytest.raises(FileNotFoundError), disk_faults_reported(tmp_path):
            missing.read_text()
