"""Commands to paste ask for the job again."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.diagnose.commands import allocator_line, command
from harness.launch.environment import this_host
from harness.measure.understanding import RunRequest, settle
from harness.resolve.recipe import Request

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(name="asked")
def _asked(case):
    """A case of Llama 3 70B with further options, settled as a run settles them."""

    def build(**options):
        request = Request(model_recipe_name="llama3_70b", task="sft", gpu="h100", compute_dtype="fp8_cs", num_gpus=32,
                          **options)  # fmt: skip
        settled = settle(RunRequest(asked=request), this_host())
        return case("", spec=settled.spec, sources=tuple(settled.sources.items()))

    return build


def test_a_recipes_own_settings_are_not_repeated(asked, case):
    assert command(asked(snapshot_on_oom=True), "run", change={"recompute": "mlp"}) == (
        "mbr-perf run -mr llama3_70b --task sft -g h100 -c fp8_cs -ng 32 --snapshot_on_oom --recompute mlp "
        "--launcher slurm --time_limit MINUTES"
    )
    assert command(case("", spec=None), "run") == ""


@pytest.mark.parametrize(
    ("own", "name"), [("", "PYTORCH_CUDA_ALLOC_CONF"), ("roundup_power2_divisions:4", "PYTORCH_ALLOC_CONF")]
)
def test_the_allocator_is_set_in_the_variable_that_the_job_uses(asked, own, name):
    job = replace(asked(env=(f"{name}={own}",) if own else ()), has_given_settings=True)
    assert allocator_line(job, "max_split_size_mb:128") == f"export {name}=max_split_size_mb:128"
    words = shlex.split(allocator_line(replace(job, has_given_settings=False), "max_split_size_mb:128"))
    assert words[:2] == ["mbr-perf", "run"] and words[words.index("-E") + 1] == f"{name}=max_split_size_mb:128"


def test_options_variables_and_set_values_are_kept(asked):
    job = asked(
        tensor_model_parallel_size=8, virtual_pipeline_model_parallel_size="none", max_steps=5, memory_limit=70.5,
        env=("NCCL_ALGO=Ring",), set_values=("kernels.attention_backend=unfused",), cuda_graph_impl="none",
    )  # fmt: skip
    words = shlex.split(command(job, "run"))
    for pair in (
        ["--tensor_model_parallel_size", "8"], ["--virtual_pipeline_model_parallel_size", "none"], ["--max_steps", "5"],
        ["--memory_limit", "70.5"], ["-E", "NCCL_ALGO=Ring"], ["--set", "kernels.attention_backend=unfused"],
        ["--cuda_graph_impl", "none"], ["--recompute", "none"],
    ):  # fmt: skip
        assert pair in [words[i : i + 2] for i in range(len(words))]


def test_a_plan_is_not_asked_for_steps_that_it_does_not_measure(asked):
    job = asked(max_steps=6, eval_time_start_step=2, memory_limit=0.12)
    assert " --max_steps 6 " in command(job, "run")
    assert " --eval_time_start_step 2 " in command(job, "run")
    assert "step" not in command(job, "plan")
    assert " --memory_limit 0.12 " in command(job, "plan")


def test_the_options_that_selected_the_point_are_kept_and_its_recipe_has_its_name(case, tmp_path):
    shutil.copytree(RECIPES / "deepseek", tmp_path / "mine" / "deepseek")
    request = Request(model_recipe_name="deepseek_v3", gpu="h200", point_gpu="h100", variant="large_scale",
                      recipes_dir=tmp_path / "mine")  # fmt: skip
    settled = settle(RunRequest(asked=request), this_host())
    line = command(case("", spec=settled.spec, sources=tuple(settled.sources.items())), "plan")
    assert "-mr deepseek_v3 " in line
    assert f" --point_gpu h100 --variant large_scale --recipes_dir {tmp_path / 'mine'} " in line
