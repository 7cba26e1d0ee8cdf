"""The repeats of one request: understood once, whatever happens to its recipe meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.batch.repeats import run_experiment
from harness.errors import ExitCode
from harness.measure.experiment import Display
from harness.measure.understanding import RunRequest
from harness.records.gating import LaunchSettings
from harness.records.store import read_record
from harness.resolve.recipe import Request

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
