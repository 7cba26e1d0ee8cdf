"""Options become requests: fields of the same names, groups as dataclasses, and options as a user types them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from harness.cli.cluster import cluster_request
from harness.cli.commands import WholeShortOptions, spread, takes
from harness.cli.options import ClusterLaunchOptions, ExperimentOptions, JudgeOptions, LaunchOptions, LocalLaunchOptions
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


@dataclass(frozen=True, kw_only=True)
class What:
    """What to do."""

    name: Annotated[str, typer.Option("--name", "-nm", help="A name.")]
    folder: Annotated[Path | None, typer.Option("--folder", "-f", help="A folder.")] = None


@pytest.fixture
def command():
    """An app of one command, and the values that it received."""
    received = []

    @takes(What)
    def greet(what: What) -> None:
        """Greet somebody."""
        received.append(what)

    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=WholeShortOptions)(greet)
    return app, received


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["-nn", "a"], "-nn (did you mean '-nm'"),
        (["-nm", "a", "-fthere"], "-fthere (known: -nm, -f)"),
        (["-nm", "a", "-zq"], "-zq (known: -nm, -f)"),
    ],
)
def test_a_slip_in_a_short_option_is_an_error_and_no_value(command, typed, expected):
    app, received = command
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 2
    assert "Error: " in done.output and expected in done.output
    assert received == []


MANY = {"--exact": "recommended", "--calibrate": None, "--over": None}


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--exact none mlp -g h100", "--exact none --exact mlp -g h100"),
        ("-g h100 --exact", "-g h100 --exact recommended"),
        ("--exact --json", "--exact recommended --json"),
        ("--exact none --exact mlp", "--exact none --exact mlp"),
        ("--exact=mlp -g h100", "--exact=mlp -g h100"),
        ("--calibrate a b --json", "--calibrate a --calibrate b --json"),
        ("--calibrate", "--calibrate"),
        ("--over tp=2,4 pp=4,8 -ng 32", "--over tp=2,4 --over pp=4,8 -ng 32"),
        ("-mr llama3_8b stray", "-mr llama3_8b stray"),
    ],
)
def test_every_value_gets_its_option(typed, read):
    assert spread(typed.split(), MANY) == read.split()
