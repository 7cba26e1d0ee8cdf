"""Commands to paste ask for the job again, and for nothing that the rules refuse."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.diagnose.commands import allocator_line, command
from harness.diagnose.diagnosis import diagnose
from harness.diagnose.forecasts import rulings_on
from harness.diagnose.values import Change, Outlook
from harness.launch.environment import this_host
from harness.measure.understanding import RunRequest, settle
from harness.resolve.recipe import Request
from harness.units import GIB
from tests.diagnose.conftest import FRAGMENTED, FULL

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


TE = {"kernels": {"transformer_impl": "transformer_engine"}}
# Recomputing mlp inside a captured mlp fails at capture before transformer-engine 2.12.
CAPTURED = {"cuda_graph": {"impl": "transformer_engine", "scope": ("mlp",)}, "recompute": "mlp"} | TE


@pytest.fixture(name="answer")
def _answer():
    """The diagnosis by the rules, as the command makes it."""

    def build(case, outlook=None):
        return diagnose(case, outlook, rulings_on(case, this_host()))

    return build


def test_a_job_that_ran_out_of_memory_cannot_have_settings_that_the_rules_refuse(case, answer):
    found = answer(case(FULL, CAPTURED, has_given_settings=True, paths=("job.log",)))
    assert "G22: mlp: transformer-engine 2.11 cannot capture" in found.fixes[0].text
    assert not [fix for fix in found.fixes if fix.command.startswith("mbr-perf")]
    assert found.symptoms == ()


def test_refused_settings_of_a_job_that_ended_well_are_noted(case, answer):
    found = answer(case("", CAPTURED, has_given_settings=True, paths=("job.log",)))
    assert (found.fixes, "G22: " in found.evidence[0]) == ((), True)


def test_a_job_that_failed_by_its_settings_is_shown_the_rule(case, answer):
    found = answer(case("ValueError: no", CAPTURED, has_given_settings=True))
    assert "G22: " in found.evidence[0]
    assert any(fix.text.startswith("G22: ") for fix in found.fixes)


def test_no_setting_of_the_allocator_that_the_job_excludes_is_printed(case, answer):
    excluded = answer(case(FRAGMENTED, TE | {"ddp": {"nccl_ub": True}}, expandable_segments=False)).fixes[0]
    assert "expandable_segments:True" not in excluded.command


def test_no_change_that_the_rules_refuse_is_printed(case, answer):
    outlook = Outlook((Change("mlp", 60 * GIB, 0.16),), budget_bytes=74 * GIB)
    fix = answer(case(FULL, CAPTURED | {"recompute": "core_attn"}), outlook).fixes[0]
    assert (fix.command, "G22: " in fix.text) == ("", True)


def test_the_command_overrides_the_same_rules_as_the_run(case, answer):
    forced = replace(case(FRAGMENTED, CAPTURED, expandable_segments=True), forced=("G22",))
    assert "--force G22" in answer(forced).fixes[0].command
    assert rulings_on(forced, this_host()).job == ()


@pytest.mark.parametrize("gpu", [(), ("-g", "h1000")])
def test_a_typo_of_the_recipe_is_named_with_all_other_problems(mbr_perf, gpu):
    answer = mbr_perf("diagnose", "gone.log", "-mr", "llama3_8bb", "--recompute_modules", "mpl", *gpu)
    assert answer.code == 2
    for problem in (gpu[1] if gpu else "GPU type", "'llama3_8bb'", "'mpl'", "gone.log"):
        assert problem in answer.err
