"""Whether packages fit together and fit the driver, by their versions alone."""

import pytest

from harness.experiment.software import Software
from harness.launch.detection import DetectedGpu, Detection
from harness.measure.software_fit import Declared, cuda_line, cuda_of, software_lines

DECLARED = Declared(
    {
        "megatron-core": (
            "torch>=2.7.0", "numpy", 'transformer-engine[core_cu13,pytorch]<2.12.0,>=2.9.0a0; extra == "dev"',
        ),
        "torch": ('nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"',),
    }
)  # fmt: skip
H100 = DetectedGpu(index=0, name="NVIDIA H100 80GB HBM3")
WITH_GPU = Detection(driver="570.1", cuda="12.8", gpus=(H100,))


def lines(gpus=WITH_GPU, declared=DECLARED, **versions):
    fields = {"torch": "2.9.1", "megatron_core": "0.16.1", "transformer_engine": "2.11.0"} | versions
    return {line.name: line for line in software_lines(Software(**fields), declared, gpus)}


def test_software_that_fits_is_ok():
    assert {name: line.state for name, line in lines().items()} == {
        "torch": "ok", "megatron-core": "ok", "transformer-engine": "ok", "CUDA": "ok",
    }  # fmt: skip


def test_without_a_gpu_neither_transformer_engine_nor_cuda_is_checked():
    assert set(lines(Detection(), transformer_engine=None)) == {"torch", "megatron-core"}


@pytest.mark.parametrize(
    ("name", "versions", "state", "found", "remedy"),
    [
        ("torch", {"torch": "2.5.1"}, "problem", "2.5.1 ", "pip install 'torch>=2.7.0'"),
        ("megatron-core", {"megatron_core": "0.15.2"}, "problem", "0.15.2 ",
         "pip install 'megatron-core>=0.16'"),
        ("megatron-core", {"megatron_core": "0.21.0"}, "warning", "0.21.0 is newer", "pip install 'megatron-core<0.21'"),
        ("transformer-engine", {"transformer_engine": None}, "warning", "not installed",
         "pip install --no-build-isolation 'transformer-engine[pytorch]>=2.9.0a0,<2.12.0'"),
        ("transformer-engine", {"transformer_engine": "2.8.0"}, "warning", "2.8.0 is outside", "pip install"),
    ],
)  # fmt: skip
def test_missing_or_wrong_software_is_named_with_the_command_that_fixes_it(name, versions, state, found, remedy):
    line = lines(**versions)[name]
    assert line.state == state
    assert line.found.startswith(found)
    assert line.remedy.startswith(remedy)


@pytest.mark.parametrize("version", ["2.9.0a0", "2.9.0", "2.11.0+cu128"])
def test_versions_at_the_edges_of_a_range_belong_to_it(version):
    assert lines(transformer_engine=version)["transformer-engine"].state == "ok"


def test_a_megatron_core_that_declares_nothing_gets_the_range_of_the_tested_release():
    assert lines(declared=Declared(), transformer_engine="2.12.0")["transformer-engine"].state == "warning"
    assert lines(declared=Declared(), torch="2.6.0")["torch"].state == "ok"


@pytest.mark.parametrize(
    ("version", "requirements", "cuda"),
    [
        ("2.9.1+cu128", (), "12.8"),
        ("2.13.0+cpu", (), "cpu"),
        ("2.9.1", ('nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"',), "12.8"),
        ("2.11.0", ('cuda-toolkit[cudart,nvrtc]==13.0.2; platform_system == "Linux"',), "13.0"),
        ("2.9.0", ("nvidia-cuda-runtime==13.0.48",), "13.0"),
        ("2.6.0a0+ecf3bae40a.nv25.01", (), None),
        ("2.9.1", ("filelock",), None),
    ],
)
def test_the_cuda_of_torch_is_read_from_its_metadata(version, requirements, cuda):
    assert cuda_of(version, requirements) == cuda


@pytest.mark.parametrize(
    ("built_for", "driver", "state", "text"),
    [
        ("12.8", "12.8", "ok", " 12.8; "),
        ("12.8", "12.4", "ok", "12.4"),
        ("13.0", "12.8", "problem", " 13.0"),
        ("cpu", "12.8", "problem", "GPUs"),
        (None, "12.8", "ok", "CUDA"),
        ("12.8", None, "ok", "driver"),
    ],
)
def test_cuda_of_torch_is_compared_with_the_driver(built_for, driver, state, text):
    line = cuda_line("2.9.1", built_for, driver)
    assert (line.name, line.state) == ("CUDA", state)
    assert text in line.found
    assert bool(line.remedy) == (state == "problem")


def test_for_an_old_driver_the_remedy_names_a_matching_torch():
    assert cuda_line("2.11.0", "13.0", "12.4").remedy.endswith(" CUDA 12")


def test_what_the_installed_packages_declare_can_be_read():
    low, end = Declared.here().bounds("megatron-core", "transformer-engine")
    assert (low, end) == ("2.9.0a0", "2.12.0")
