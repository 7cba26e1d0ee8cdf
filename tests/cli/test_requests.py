"""Options become requests: fields of the same names, and options as a user types them."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.cli.cluster import cluster_request
from harness.cli.options import (
    ClusterLaunchOptions,
    ExperimentOptions,
    JudgeOptions,
    LaunchOptions,
    LocalLaunchOptions,
)
from harness.cli.requests import experiment_request, given_options, read, run_request
from harness.launch.plan import Nodes
from harness.records.gating import GateOptions, LaunchSettings
from tests.commands import refused

ASKED = ExperimentOptions(model_recipe_name="llama3_8b")


def test_an_option_that_is_not_given_leaves_the_default_of_the_request():
    assert read(GateOptions, JudgeOptions()) == GateOptions()
    assert read(LaunchSettings, LocalLaunchOptions()) == LaunchSettings()


def test_what_is_settled_wins_over_the_option_of_the_same_name():
    assert read(Nodes, LaunchOptions(nnodes=2, node_rank=1), node_rank=0) == Nodes(nnodes=2, node_rank=0)


def test_a_field_that_no_option_has_is_an_error_and_no_default():
    @dataclass(frozen=True)
    class Wanted:
        seconds: float = 1.0

    with pytest.raises(AttributeError, match="Wanted: no option seconds"):
        read(Wanted, LaunchOptions())


def test_a_run_request_has_every_option_in_its_place():
    launch = LaunchOptions(
        timeout_s=60.0, hang_timeout_s=9.0, pass_env=["A"], repeats=2, nnodes=2, master_port=7, run_dir=Path("here")
    )
    judge = JudgeOptions(eval_time_start_step=3, golden_values_path=Path("golden"), accept_differences=["torch"])
    found = run_request(replace(ASKED, env=["A=1"], force=["T01"], seed=5), judge, launch)
    assert (found.asked.env, found.asked.seed, found.asked.eval_time_start_step, found.asked.gpu) == (
        ("A=1",),
        5,
        3,
        "",
    )
    assert (found.force, found.gate.golden_values_path, found.repeats) == ({"T01"}, Path("golden"), 2)
    assert found.gate.accept_differences == ("torch",)
    assert found.launch == LaunchSettings(timeout_s=60.0, hang_timeout_s=9.0, pass_env=("A",))
    assert (found.nodes, found.run_dir, found.results_dir) == (Nodes(nnodes=2, master_port=7), Path("here"), None)


def test_a_job_has_what_slurm_is_asked_for():
    given = ClusterLaunchOptions(
        time_limit="01:30:00", partition="big", gpus="gres", python="/py", pending_timeout_minutes=5
    )
    found = cluster_request(LocalLaunchOptions(launcher="slurm"), replace(given, no_exclusive=True), {})
    assert found is not None
    options = found.options
    assert (options.time_limit_minutes, options.partition, options.gpus) == (90, "big", "gres")
    assert (options.python, options.pending_timeout_minutes, options.exclusive) == ("/py", 5, False)


def test_options_are_named_as_they_are_typed():
    launch = LocalLaunchOptions(replay_from=Path("run"), timeout_s=1.0)
    assert given_options(launch, replace(ASKED, distribute_saved_activations=True), but={"model_recipe_name"}) == [
        "--from", "--timeout", "--distribute_saved_activations",
    ]  # fmt: skip
    options = ClusterLaunchOptions(gpus="none", python="/py", pending_timeout_minutes=1)
    refused(
        lambda: cluster_request(LocalLaunchOptions(), options, {}), "--slurm_python, --pending_timeout, --slurm_gpus: "
    )


def test_the_chunks_of_a_virtual_pipeline_are_a_count_or_none():
    assert (
        experiment_request(
            replace(ASKED, virtual_pipeline_model_parallel_size="None")
        ).virtual_pipeline_model_parallel_size
        == "none"
    )
    wrong = replace(ASKED, virtual_pipeline_model_parallel_size="x")
    refused(lambda: experiment_request(wrong), "--virtual_pipeline_model_parallel_size 'x' ")
