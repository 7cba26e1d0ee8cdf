"""From a request to everything that is known before a start: the machine, its GPUs and its container."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import BadRequestError, ManyProblemsError
from harness.launch.environment import Host, this_host
from harness.launch.environment_rows import STOPS
from harness.launch.machine import settled_gpu
from harness.measure.provenance import container_of
from harness.measure.understanding import RunRequest, settle, understand, with_stop
from harness.records.gating import LaunchSettings
from harness.resolve.recipe import ForeignSource, Request
from tests.commands import refused

REPLAYED = str(Path(__file__).parents[1] / "data" / "replay" / "replayed.yaml")


@pytest.fixture
def host():
    """A machine whose Python has no NVML to ask."""
    return Host(python=sys.executable, hostname="node0", num_cores=4, shell={"PATH": "/bin"})


def request_for(gpu="cpu", recipe=REPLAYED, **changes):
    asked = {name: changes.pop(name) for name in list(changes) if name in Request.__dataclass_fields__}
    return RunRequest(asked=Request(model_recipe_name=recipe, gpu=gpu, **asked), **changes)


def test_what_the_machine_decides_is_settled_with_its_source(host):
    settled = settle(request_for(gpu=""), host)
    assert (settled.spec.gpu, settled.sources["gpu"]) == ("cpu", "this machine")
    assert " cpu: " in settled.notes[0]


@pytest.mark.parametrize(
    ("answer", "gpu"),
    [('{"error": "no driver"}', "h100"), ('{"gpus": [{"index": 0, "name": "NVIDIA H200", "total_bytes": 1}]}', "h200")],
)
def test_only_a_machine_without_gpu_leaves_the_gpu_to_the_recipe(host, program, answer, gpu):
    asked = request_for(gpu="", point_gpu="h100")
    settled = settle(asked, replace(host, python=program(f"echo '{answer}'")), gpu_point=True)
    assert settled.spec.gpu == gpu
    assert settled.from_point == ({"gpu": "h100", "task": "pretrain", "compute_dtype": "bf16"} if gpu == "h100" else {})
    again = settle(request_for(gpu="", point_gpu="h100", num_layers=4), host, known=settled)
    assert again.spec.gpu == gpu


def test_a_gpu_that_was_asked_for_is_not_looked_for(host):
    settled = settle(request_for(gpu="H100"), host)
    assert settled.spec.gpu == "h100"
    assert not any("running on" in note for note in settled.notes)


@pytest.mark.parametrize(("gpu", "implementation"), [("cpu", "local"), ("h100", "transformer_engine")])
def test_the_implementation_of_layers_is_settled(host, gpu, implementation):
    assert settle(request_for(gpu=gpu, recipe="llama3_8b"), host).spec.kernels.transformer_impl == implementation


def test_nothing_is_left_to_settle_in_the_spec_that_runs(host, tmp_path):
    understood = understand(request_for(recipe="llama3_8b"), host, tmp_path / "run")
    assert "auto" not in (understood.spec.gpu, understood.spec.kernels.transformer_impl)
    assert understood.plan.run_dir == tmp_path / "run"
    assert not (tmp_path / "run").exists()


def test_every_setting_has_a_source(host, tmp_path):
    understood = understand(request_for(seq_length=128), host, tmp_path)
    assert understood.sources["batch.seq_length"] == "--seq_length"
    assert "replayed.yaml" in understood.sources["model.num_layers"]
    assert understood.sources["optimizer.lr"] == "default"


def test_a_rule_that_forbids_the_start_is_an_error_with_the_way_out(host, tmp_path):
    with pytest.raises(BadRequestError, match="EFF01") as error:
        understand(request_for(recompute_modules="moe"), host, tmp_path)
    assert "--force EFF01" in error.value.remedy


def test_problems_of_plan_and_rules_are_raised_together(host, tmp_path):
    with pytest.raises(ManyProblemsError) as error:
        understand(
            request_for(recompute_modules="moe", launch=LaunchSettings(timeout_s=-1.0), env=("RANK=1",)), host, tmp_path
        )
    messages = [problem.message for problem in error.value.problems]
    assert any("--timeout" in message for message in messages)
    assert any("RANK" in message for message in messages)
    assert any("EFF01" in message for message in messages)


def test_variables_of_the_ranks_are_judged_by_the_rules(host, tmp_path):
    """expandable segments and NCCL user buffers do not go together; only the plan knows the final environment."""
    conflicting = ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",)
    with pytest.raises(BadRequestError, match="nccl_ub"):
        understand(request_for(gpu="h100", env=conflicting, set_values=("ddp.nccl_ub=true",)), host, tmp_path)


@pytest.mark.parametrize(("exported", "stops"), [("", True), ("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", False)])
def test_a_job_that_megatron_would_stop_at_its_start_is_noted(tmp_path, host, exported, stops):
    script = tmp_path / "train.sh"
    sizes = (
        "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --vocab-size 99"
    )
    parallel = "--bf16 --tensor-model-parallel-size 2 --sequence-parallel"
    script.write_text(f"{exported}torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} {parallel}\n")
    asked = Request(model_recipe_name="", gpu="h100", source=ForeignSource("megatron_args", str(script)))
    noted = with_stop(settle(RunRequest(asked=asked), host), asked).notes
    assert any(note.startswith(STOPS) and "V01" in note for note in noted) == stops


@pytest.fixture(name="answering")
def _answering(program):
    """This machine, with a shell script in the place of the interpreter that asks NVML."""
    return lambda body: replace(this_host(), python=program(body))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'Segmentation fault' >&2; exit 139", "exit code 139: Segmentation fault"),
        ("echo what", ": what"),
        ("""echo '{"gpus": [{"index": 0, "error": "GPU is lost (NVML 15)"}]}'""", "GPU is lost"),
    ],
)
def test_unknown_gpus_are_no_cpu_run(answering, body, reason):
    refused(lambda: settled_gpu(answering(body)), reason)


def test_a_machine_without_the_driver_is_one_without_gpus(answering):
    gpu, source = settled_gpu(answering("""echo '{"error": "no library (NVML 12)"}'"""))
    assert (gpu, source.endswith(" (no library (NVML 12))")) == ("cpu", True)


@pytest.mark.parametrize(
    ("shell", "image"),
    [
        ({"NVIDIA_PYTORCH_VERSION": "25.09", "NVIDIA_BUILD_ID": "1234"}, "nvidia pytorch 25.09 build 1234"),
        ({"NVIDIA_PYTORCH_VERSION": "25.09"}, "nvidia pytorch 25.09"),
        ({"NVIDIA_BUILD_ID": "1234"}, None),
        ({}, None),
    ],
)
def test_an_image_of_nvidia_is_named_by_its_own_variables(shell, image):
    assert container_of(shell) == image
