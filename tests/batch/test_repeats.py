"""The repeats of one request: understood once, whatever happens to its recipe meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.batch.repeats import dry_run_on_cluster, run_experiment
from harness.cluster.showing import JobDisplay
from harness.errors import BadRequestError, ExitCode
from harness.launch.plan import Nodes
from harness.measure.experiment import Display
from harness.measure.understanding import RunRequest
from harness.records.gating import GateOptions, LaunchSettings
from harness.records.job import ClusterRequest, SlurmOptions
from harness.records.store import read_record
from harness.resolve.recipe import Request
from tests.commands import refused

REPLAYS = Path(__file__).parents[1] / "data" / "replay"


@dataclass(frozen=True)
class Editing(Display):
    """Somebody edits the recipe while the first run is at work."""

    recipe: Path = Path()

    @contextmanager
    def progress(self, understood) -> Iterator:
        self.recipe.write_text(self.recipe.read_text().replace("max_steps: 8", "max_steps: 6"))
        with super().progress(understood) as show:
            yield show


def test_a_recipe_edited_between_repeats_changes_nothing(tmp_path, capsys):
    recipe = tmp_path / "replayed.yaml"
    recipe.write_text((REPLAYS / "replayed.yaml").read_text())
    asked = Request(model_recipe_name=str(recipe), gpu="cpu")
    request = RunRequest(
        asked=asked,
        repeats=2,
        launch=LaunchSettings(launcher="replay", replay_from=REPLAYS / "ok"),
        results_dir=tmp_path,
    )
    assert run_experiment(request, Editing(recipe=recipe)) is ExitCode.OK
    specs = [read_record(path / "record.json").spec for path in (tmp_path / "runs").iterdir()]
    assert [spec.measure.max_steps for spec in specs] == [8, 8]
    assert "max_steps: 6" in recipe.read_text()


@pytest.fixture(name="request_of")
def _request_of(tmp_path):
    """A request to replay a recorded run on the CPU; its recipe has two ranks."""

    def build(recorded="ok", **changes):
        launch = LaunchSettings(launcher="replay", replay_from=REPLAYS / recorded)
        asked = Request(model_recipe_name=str(REPLAYS / "replayed.yaml"), gpu="cpu")
        return RunRequest(**{"asked": asked, "launch": launch, "results_dir": tmp_path, **changes})

    return build


def test_a_run_that_ended_badly_is_not_repeated_and_its_end_is_the_exit_code(request_of, tmp_path):
    asked = Request(model_recipe_name=str(REPLAYS / "replayed.yaml"), gpu="h100")
    assert run_experiment(request_of("oom", asked=asked, repeats=3), Display()) is ExitCode.OUT_OF_MEMORY
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_only_node_0_of_several_reports(request_of, tmp_path, capsys):
    asked = Request(model_recipe_name=str(REPLAYS / "replayed.yaml"), gpu="h100")
    for rank in (0, 1):
        nodes, run_dir = Nodes(2, rank, "127.0.0.1", 1), tmp_path / str(rank)
        (run_dir / "ranks").mkdir(parents=True)
        (run_dir / "ranks" / f"outcome_node_{1 - rank:03d}.json").touch()  # node 0 waits a minute for it
        request = request_of("oom", asked=asked, nodes=nodes, run_dir=run_dir)
        assert run_experiment(request, Display()) is ExitCode.OUT_OF_MEMORY
        assert bool(capsys.readouterr().out) == (rank == 0)


@pytest.mark.parametrize("changes", [{"nodes": Nodes(2, 0, "a")}, {"repeats": 2, "run_dir": Path("one")}])
def test_a_folder_of_several_nodes_is_named_and_that_of_several_runs_is_not(request_of, changes, tmp_path):
    with pytest.raises(BadRequestError, match="run_dir"):
        run_experiment(request_of(**changes), Display())
    assert not (tmp_path / "runs").exists()


def test_a_golden_that_is_not_there_is_an_error_before_the_run(request_of, tmp_path):
    gate = GateOptions(golden_values_path=tmp_path / "nowhere")
    asked = request_of(launch=LaunchSettings(), gate=gate)
    refused(lambda: run_experiment(asked, Display()), str(tmp_path / "nowhere"))
    assert not (tmp_path / "runs").exists()


@dataclass(frozen=True)
class Planned(Display):
    """Keeps the job of a dry run."""

    jobs: list = field(default_factory=list)

    def plan(self, understood, prediction, plan=None):
        self.jobs.append(plan.record)


@pytest.mark.parametrize(("num_gpus", "nnodes"), [(2, 2), (1, 1)])
def test_a_job_has_a_run_per_repeat_and_as_many_nodes_as_its_ranks_need(request_of, tmp_path, num_gpus, nnodes):
    sizes = {"num_gpus": num_gpus, "gpus_per_node": 1, "pipeline_model_parallel_size": num_gpus}
    asked = Request(model_recipe_name=str(REPLAYS / "replayed.yaml"), gpu="cpu", **sizes)
    request, shown = (
        request_of(asked=asked, repeats=2, launch=LaunchSettings(), force=frozenset({"R18", "B04f"})),
        Planned(),
    )
    dry_run_on_cluster(request, ClusterRequest(options=SlurmOptions(time_limit_minutes=5)), JobDisplay(shown))
    (job,) = shown.jobs
    assert [(run.run_id, Path(run.run_dir).parent) for run in job.runs] == [
        (name, tmp_path / "runs") for name in ("RUN1", "RUN2")
    ]
    assert (job.what, job.nnodes, job.launch.nnodes, job.launch.launcher) == ("run", nnodes, nnodes, "torchrun")
    assert {run.force for run in job.runs} == {("B04f", "R18")}


def test_every_problem_of_a_job_is_reported_at_once(request_of):
    wrong = request_of(repeats=2, run_dir=Path("one"), launch=LaunchSettings())
    with pytest.raises(BadRequestError) as caught:
        dry_run_on_cluster(
            wrong, ClusterRequest(options=SlurmOptions(partition="a b", time_limit_minutes=5)), JobDisplay(Planned())
        )
    assert [problem.message.split()[0] for problem in caught.value.problems] == ["--run_dir", "--partition"]
