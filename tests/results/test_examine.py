"""Each check of the doctor: ok, not ok, and the remedy."""

from dataclasses import replace

import pytest

from harness.errors import ExitCode
from harness.experiment.software import Software
from harness.launch.detection import DetectedGpu, Detection
from harness.launch.environment import LATE_REMEDY, this_host
from harness.results import examine as doctor
from harness.units import GIB

H200 = Detection(gpus=(DetectedGpu(index=0, name="NVIDIA H200"),))


def only(lines):
    (line,) = lines
    return line


@pytest.mark.parametrize(
    ("states", "code"),
    [(("ok", "ok"), ExitCode.OK), (("ok", "warning"), ExitCode.INCONCLUSIVE), (("warning", "problem"), ExitCode.BAD_REQUEST)],
)  # fmt: skip
def test_the_worst_line_decides_the_exit_code(states, code):
    assert doctor.exit_code(tuple(doctor.Line("x", state, "") for state in states)) == code


@pytest.mark.parametrize(("version", "state"), [((3, 10), "problem"), ((3, 11), "ok"), ((3, 14), "ok")])
def test_an_old_python_is_a_problem(version, state):
    assert only(doctor.python_line(version)).state == state


@pytest.mark.parametrize(
    ("name", "versions", "state", "remedy"),
    [
        ("torch", {}, "ok", ""),
        ("torch", {"torch": "2.5.1"}, "problem", "pip install 'torch>=2.6'"),
        ("torch", {"torch": None}, "warning", "pip install 'mbr-perf[train]'"),
        ("megatron-core", {"megatron_core": "0.15.2"}, "problem", "pip install 'megatron-core>=0.16'"),
        ("megatron-core", {"megatron_core": "0.21.0"}, "warning", "pip install 'megatron-core<0.21'"),
        ("transformer-engine", {}, "ok", ""),
        ("transformer-engine", {"transformer_engine": None}, "warning", "pip install --no-build-isolation"),
    ],
)
def test_missing_or_wrong_software_is_named_with_the_command_that_fixes_it(name, versions, state, remedy):
    software = Software(**{"torch": "2.9.1", "megatron_core": "0.16.1", "transformer_engine": "2.11.0"} | versions)
    found = {line.name: line for line in doctor.software_lines(software, H200)}[name]
    assert (found.state, found.remedy.startswith(remedy)) == (state, True)


@pytest.mark.parametrize(
    ("error", "state", "remedy"),
    [
        (None, "ok", ""),
        ("NVML Shared Library Not Found (NVML 12)", "ok", ""),
        ("Driver Not Loaded (NVML 9)", "warning", "nvidia-smi"),
        ("silence", "warning", "nvidia-smi"),
    ],
)  # fmt: skip
def test_a_machine_without_gpu_is_ok_but_a_failing_nvml_is_not(error, state, remedy):
    line = only(doctor.gpu_lines(Detection(error=error)))
    assert (line.name, line.state) == ("GPU", state)
    assert remedy in line.remedy


def test_every_gpu_is_listed_with_its_type_or_its_error():
    gpus = (
        DetectedGpu(index=0, name="NVIDIA H100 80GB HBM3", total_bytes=80 * GIB),
        DetectedGpu(index=1, name="NVIDIA Quadro P400"),
        DetectedGpu(index=2, error="GPU is lost (NVML 15)"),
    )
    lines = list(doctor.gpu_lines(Detection(driver="570.1", gpus=gpus)))
    assert [(line.name, line.state) for line in lines] == [
        ("NVIDIA driver", "ok"), ("GPU 0", "ok"), ("GPU 1", "warning"), ("GPU 2", "problem"),
    ]  # fmt: skip
    assert lines[1].found == "NVIDIA H100 80GB HBM3, 80.00 GiB: --gpu h100"
    assert "cpu" not in lines[2].remedy
    assert lines[3].found == "GPU is lost (NVML 15)"


@pytest.fixture
def toolbox(tmp_path):
    """A folder for PATH with these programs, and a folder for headers, with Python.h if requested."""

    def build(*tools, header=True):
        for tool in tools:
            (tmp_path / tool).write_text("#!/bin/sh\n")
            (tmp_path / tool).chmod(0o755)
        if header:
            (tmp_path / "Python.h").write_text("")
        return {"PATH": str(tmp_path)}, tmp_path

    return build


@pytest.mark.parametrize(
    ("tools", "header", "found"),
    [
        (("c++", "ninja"), True, "compilers"),
        (("c++",), True, "no ninja: "),
        ((), False, "no c++ and no ninja and no Python.h: "),
    ],
)
def test_megatron_core_0_17_needs_a_compiler(toolbox, tools, header, found):
    line = only(doctor.compiler_line(Software(megatron_core="0.17.0"), Detection(), *toolbox(*tools, header=header)))
    assert line.found.startswith(found)
    assert line.state == ("warning" if found.startswith("no") else "ok")


@pytest.mark.parametrize("version", [None, "0.16.1"])
def test_megatron_core_before_0_17_needs_no_compiler_without_gpus(toolbox, version):
    assert list(doctor.compiler_line(Software(megatron_core=version, torch="2.13.0"), Detection(), *toolbox())) == []


@pytest.mark.parametrize(
    ("tools", "env", "header", "state", "found"),
    [
        (("gcc",), {}, True, "ok", "compilers"),
        (("clang",), {}, True, "ok", "compilers"),
        ((), {"CC": "/opt/cc"}, True, "ok", "compilers"),
        (("gcc",), {}, False, "problem", "no Python.h: "),
        ((), {}, False, "problem", "no C compiler and no Python.h: "),
    ],
)
def test_a_gpu_run_needs_a_compiler_for_triton(toolbox, tools, env, header, state, found):
    shell, headers = toolbox(*tools, header=header)
    software = Software(megatron_core="0.16.1", torch="2.13.0")
    line = only(doctor.compiler_line(software, H200, shell | env, headers))
    assert line.state == state
    assert line.found.startswith(found)


@pytest.mark.parametrize(
    ("says", "te", "state", "found"),
    [
        ("echo 1", "2.11", "ok", "torch, transformer_engine.pytorch; torch 2.11.0 finds 1 of 1 GPU"),
        ("echo a warning; echo 0", None, "problem", "torch; torch 2.11.0 finds 0 of 1 GPU"),
        ("echo 'ImportError: libcudnn_graph.so.9: HF_TOKEN=CANARY' >&2; exit 1", "2.11", "problem",
         "torch, transformer_engine.pytorch: exit code 1: ImportError: libcudnn_graph.so.9: HF_TOKEN=***"),
    ],
)  # fmt: skip
def test_what_ranks_import_is_imported_where_there_are_gpus(program, says, te, state, found):
    host = replace(this_host(), python=program(says))
    line = only(doctor.import_line(host, Software(torch="2.11.0", transformer_engine=te), H200))
    assert (line.state, line.found) == (state, found)


def test_imports_that_take_too_long_are_no_wrong_build(program):
    host = replace(this_host(), python=program("exec sleep 9"))
    line = only(doctor.import_line(host, Software(torch="2.11.0"), H200, timeout_s=0.2))
    assert (line.found, line.remedy) == ("torch: no answer within 0.2 s", LATE_REMEDY)


def test_nothing_is_imported_without_gpus_or_without_torch():
    assert list(doctor.import_line(this_host(), Software(torch="2.11.0"), Detection())) == []
    assert list(doctor.import_line(this_host(), Software(), H200)) == []


def test_a_missing_results_folder_is_tested_in_its_parent_and_nothing_is_left(tmp_path):
    line = only(doctor.results_line(tmp_path / "new" / "results"))
    assert line.state == "ok" and line.found.startswith(f"{tmp_path}/new/results: ")
    assert list(tmp_path.iterdir()) == []


def test_a_results_folder_that_is_a_file_is_a_problem(tmp_path):
    (tmp_path / "file").write_text("")
    line = only(doctor.results_line(tmp_path / "file" / "results"))
    assert (line.state, line.found) == ("problem", f"{tmp_path}/file/results: Not a directory")
    assert "--results_dir" in line.remedy


def test_missing_shared_memory_is_a_warning(tmp_path):
    line = only(doctor.shared_memory_line(tmp_path / "shm"))
    assert (line.state, line.remedy) == ("warning", "in a container: --shm-size=8g or --ipc=host")


def test_shared_memory_is_shown_with_its_size(tmp_path):
    line = only(doctor.shared_memory_line(tmp_path))
    assert line.found.endswith(f"iB at {tmp_path}")
