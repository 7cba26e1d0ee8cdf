"""Compares what this machine has with what a run needs."""

import sys

import pytest

from harness.errors import BadRequestError
from harness.launch.environment import Host
from harness.launch.machine import installed_software, settled_gpu, software_for, software_here
from harness.launch.required import require_machine

PROGRAM = """#!{python}
import sys
print({answer!r})
"""


@pytest.fixture
def machine(tmp_path):
    """A machine whose NVML lists GPUs of these product names."""

    def build(*names):
        gpus = ",".join(f'{{"index":{i},"name":"{name}","uuid":"GPU-{i}"}}' for i, name in enumerate(names))
        path = tmp_path / "python"
        path.write_text(PROGRAM.format(python=sys.executable, answer=f'{{"driver":"550.54.15","gpus":[{gpus}]}}'))
        path.chmod(0o755)
        return Host(python=str(path), hostname="node0", num_cores=8, shell={"PATH": "/bin"})

    return build


H100 = "NVIDIA H100 80GB HBM3"


def test_the_gpu_of_this_machine_is_taken_when_none_is_asked_for(machine):
    assert settled_gpu("", machine(H100, H100)) == ("h100", f"this machine has {H100} (NVML)")


def test_a_machine_without_gpu_runs_on_its_cpu(machine):
    assert settled_gpu("", machine())[0] == "cpu"


@pytest.mark.parametrize("names", [("NVIDIA Quadro P400",), (H100, "NVIDIA B200"), (H100, "NVIDIA Quadro P400")])
def test_a_gpu_that_is_not_known_is_not_guessed_at(machine, names):
    with pytest.raises(BadRequestError, match="unknown to mbr-perf, or of several types"):
        settled_gpu("", machine(*names))


def test_a_requested_gpu_is_used_unchecked(machine):
    assert settled_gpu("GB200", machine(H100)) == ("gb200", "--gpu")


def test_ranks_need_as_many_gpus(machine, make_spec):
    spec = make_spec()
    require_machine(spec, machine(*[H100] * 8), 8)
    with pytest.raises(BadRequestError, match="8 ranks on this node need as many GPUs; it has 2"):
        require_machine(spec, machine(H100, H100), 8)


def test_gpus_of_another_type_are_refused_with_the_way_to_use_them(machine, make_spec):
    with pytest.raises(BadRequestError, match="--gpu h100, but this machine has NVIDIA B200") as error:
        require_machine(make_spec(), machine(*["NVIDIA B200"] * 8), 8)
    assert "--point_gpu h100" in error.value.remedy


def test_a_cpu_run_needs_no_gpu(machine, make_spec):
    require_machine(make_spec(gpu="cpu"), machine(), 2)


def test_transformer_engine_is_assumed_only_where_the_job_runs_elsewhere(machine):
    if installed_software().transformer_engine is not None:
        pytest.skip("transformer-engine is installed here")
    elsewhere, notes = software_for("h100", machine())
    assert elsewhere.transformer_engine is not None
    assert "is assumed where the job runs" in notes[0]
    here, notes = software_for("h100", machine(H100))
    assert (here.transformer_engine, notes) == (None, ())
    on_cpu, notes = software_for("cpu", machine())
    assert (on_cpu, notes) == (installed_software(), ())


def test_what_is_assumed_by_name_counts(machine):
    assumed, notes = software_for("h100", machine(), "torch=2.8.0,megatron-core=0.15.0")
    assert (assumed.torch, assumed.megatron_core) == ("2.8.0", "0.15.0")
    assert "--assume" in notes[0]


@pytest.fixture
def silent(tmp_path):
    """A machine whose driver takes the program that asks it down."""
    path = tmp_path / "silent"
    path.write_text("#!/bin/sh\necho 'no answer' >&2\nexit 139\n")
    path.chmod(0o755)
    return Host(python=str(path), hostname="node0", num_cores=8, shell={"PATH": "/bin"})


def test_a_machine_with_unknown_gpus_is_noted_in_a_plan_and_starts_nothing(machine, silent, make_spec):
    if installed_software().transformer_engine is not None:
        pytest.skip("transformer-engine is installed here")
    unknown = "mbr-perf cannot tell whether this machine has h100"
    planned, notes = software_for("h100", silent)
    assert notes[0].startswith(f"{unknown} (asking NVML failed with exit code 139: no answer): transformer-engine ")
    with pytest.raises(BadRequestError, match=f"{unknown}: asking NVML failed") as error:
        software_here("h100", silent)
    assert "try again once nvidia-smi lists the GPUs" in error.value.remedy
    with pytest.raises(BadRequestError, match="no answer") as error:
        require_machine(make_spec(), silent, 8, planned)
    assert "try again" in error.value.remedy
    with pytest.raises(BadRequestError, match=r"planned for transformer-engine .*, which is not installed"):
        require_machine(make_spec(), machine(*[H100] * 8), 8, planned)
    assert software_here("h100", machine(H100)).transformer_engine is None
    assert software_here("h100", machine()) == software_for("h100", machine())[0]
    assert software_here("cpu", silent) == installed_software()
