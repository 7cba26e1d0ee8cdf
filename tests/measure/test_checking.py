"""Every finding about a request: rules, environment, nodes, megatron-core; and what a name in --force does."""

import re
from dataclasses import replace

import pytest

from harness.errors import ExitCode
from harness.launch.environment import child_environment, this_host
from harness.launch.plan import Nodes
from harness.measure.checking import check_request
from harness.measure.understanding import RunRequest
from harness.records.gating import LaunchSettings
from harness.resolve.find import all_recipe_files, load_recipe, recipes_dir
from harness.resolve.recipe import Request, build_spec
from tests.commands import refused

# Without NVML: asking it takes longer than the rest of a check.
HOST = replace(this_host(), python="/bin/false")


def judged(*, host=HOST, assume=None, ask_megatron=False, force=(), recipe="llama3_8b", gpu="cpu", **asked):
    """The check of a request; ``nodes``, ``launcher`` and ``pass_env`` go to the launch, the rest to the recipe."""
    nodes = asked.pop("nodes", Nodes())
    launch = LaunchSettings(**{name: asked.pop(name) for name in ("launcher", "pass_env") if name in asked})
    asked = Request(model_recipe_name=recipe, gpu=gpu, **asked)
    request = RunRequest(asked=asked, force=frozenset(force), nodes=nodes, launch=launch)
    return check_request(request, host, assume=assume, ask_megatron=ask_megatron)


def ids(checked, severity="error"):
    return [finding.id for finding in checked.findings if finding.severity == severity]


def test_an_illegal_request_exits_2_with_all_that_is_wrong_errors_first():
    checked = judged(recompute_modules="mla_up_proj", context_parallel_size=2, num_gpus=8)
    assert checked.exit_code == ExitCode.BAD_REQUEST
    assert {"R09", "EFF01", "CPU01"} <= set(ids(checked))
    severities = [finding.severity for finding in checked.findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)


@pytest.mark.train
def test_what_we_are_forced_past_megatron_core_still_refuses_and_the_finding_names_the_rule():
    checked = judged(host=this_host(), recompute_modules="mla_up_proj", force=("R09", "EFF01"), ask_megatron=True)
    (finding,) = [finding for finding in checked.findings if finding.id == "MCORE"]
    assert (checked.exit_code, finding.severity) == (ExitCode.BAD_REQUEST, "error")
    assert "R09" in finding.fix and "multi_latent_attention" in finding.mcore_text


def test_every_unknown_rule_in_force_is_named():
    refused(lambda: judged(force=("R9", "XYZ")), "--force R9: ", "--force XYZ: ", num=2)


def test_an_assumed_gpu_other_than_the_one_asked_for_is_a_warning():
    assert "RUN03" in ids(judged(assume="gpu=h100,transformer-engine=2.11", gpu="h200", point_gpu="h100"), "warning")


def test_a_job_of_many_nodes_is_judged_without_naming_them():
    checked = judged(recipe="llama3_70b", gpu="h100", task="sft", compute_dtype="fp8_cs")
    assert checked.spec.num_gpus == 32
    assert "LAUNCH" not in ids(checked)


def test_named_nodes_that_do_not_fit_and_an_unknown_launcher_are_findings():
    nodes = judged(gpu="h100", nodes=Nodes(nnodes=2, master_addr="node0"))
    launcher = judged(launcher="torchrum")
    of_nodes, of_launcher = (next(f for f in checked.findings if f.id == "LAUNCH") for checked in (nodes, launcher))
    assert of_nodes.blocks and re.search(r"num_gpus 8 .* 2 x 8 = 16", of_nodes.message)
    assert "--launcher 'torchrum': " in of_launcher.message and "torchrun" in of_launcher.fix


def test_variables_that_ranks_cannot_have_are_findings_together():
    checked = judged(env=("RANK=3",), pass_env=("NO_SUCH_VARIABLE_HERE",))
    messages = [finding.message for finding in checked.findings if finding.id == "LAUNCH"]
    names = (" RANK ", "--pass_env NO_SUCH_VARIABLE_HERE: ")
    assert [name in message for name, message in zip(names, messages, strict=True)] == [True, True]


def test_a_variable_of_the_request_reaches_the_rules():
    checked = judged(
        recipe="llama3_70b", gpu="h100", task="sft", compute_dtype="fp8_cs", env=("CUDA_DEVICE_MAX_CONNECTIONS=8",)
    )
    assert "V01" in ids(checked)


def test_a_model_that_cannot_be_cut_has_no_effect_to_show():
    checked = judged(num_layers=9, pipeline_model_parallel_size=2, recompute="full:uniform:1")
    assert (checked.effective, checked.exit_code) == (None, ExitCode.BAD_REQUEST)
    assert "P08" in ids(checked)


@pytest.mark.slow
def test_no_shipped_recipe_sets_a_variable_that_ranks_cannot_have():
    points = [p for file in all_recipe_files(recipes_dir()) for p in load_recipe(file.path, file.label).points]
    for point in points:
        spec = build_spec(point.layer, point.place)
        given = {variable.name for variable in child_environment(spec, {}, (), spec.gpus_per_node)}
        assert set(spec.env) <= given
