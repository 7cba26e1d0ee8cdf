"""Nights of recorded runs: a suite, what its cases will measure, and goldens to compare them with."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.experiment.experiment import ExperimentSpec
from harness.launch.environment import this_host
from harness.nightly.plan import NightRequest, plan_night
from harness.records.batches import EVENTS
from harness.records.golden import GoldenMetric
from harness.records.goldens import write_golden
from harness.records.night import NightPlan, read_night, run_dir_of
from harness.records.rank import Failure
from tests.conftest import build_golden, build_rank, layers_of, record_run

RECIPE = Path(__file__).parents[1] / "data" / "replay" / "replayed.yaml"
OOM = Failure(kind="oom", message="not enough memory", phase="forward_backward", step=1, request_bytes=4096)
PORT_TAKEN = Failure(
    kind="error", message="RuntimeError: EADDRINUSE: address already in use", phase="init_process_group"
)
SECONDS = 0.010
NOISE = (1.0, 1.002, 0.998, 1.001, 0.999)


def plan_of(*cases, **changes):
    """The plan of a night of these cases."""
    fields = {
        "night_id": "20260201T030000Z-nightly-0a1b2c3d", "suite": "nightly", "title": "Nightly", "cases": cases,
        "confirm": 2, "retries": 1, "command": ("mbr-perf", "nightly"), "started_at": "2026-02-01T03:00:00Z",
        "mbr_perf": "0.1.0",
    }  # fmt: skip
    return NightPlan(**fields | changes)


@dataclass
class Stage:
    """A folder with a suite of H100 cases, by name with their settings in YAML, and their recordings."""

    root: Path
    cases: dict[str, str]
    specs: dict[str, ExperimentSpec] = field(init=False)

    def __post_init__(self) -> None:
        """Write the suite and ask what its cases would run."""
        lines = [f"  - {{name: {name}, {text}}}\n" for name, text in self.cases.items()]
        self.suite.write_text(f"title: A suite\ndefaults: {{request: {{model_recipe_name: {RECIPE}, gpu: h100}}}}\n"
                              f"cases:\n{''.join(lines)}")  # fmt: skip
        self.goldens.mkdir()
        plan = plan_night(NightRequest(suite=str(self.suite)), this_host(), starts=False, waits=lambda _: None)
        self.specs = {case.name: case.spec for case in plan.cases if case.spec}

    @property
    def suite(self) -> Path:
        """The suite file."""
        return self.root / "suite.yaml"

    @property
    def goldens(self) -> Path:
        """Where its goldens are."""
        return self.root / "goldens"

    @property
    def nights(self) -> Path:
        """Where its nights are."""
        return self.root / "results" / "nights"

    def record(self, case: str, number: int, seconds: float = SECONDS, failure: Failure | None = None) -> None:
        """What that run of the case will have measured; rank 0 ``failure``."""
        run_dir, spec = run_dir_of(self.root / "recorded", case, number), self.specs[case]
        seconds *= NOISE[number % len(NOISE)]
        ranks = [build_rank(spec, rank, seconds, recompute=layers_of(spec, rank)) for rank in range(spec.num_gpus)]
        record_run(run_dir, spec, ranks, failure)

    def arguments(self, *more: object) -> list[object]:
        """A command line that replays the suite."""
        return ["nightly", self.suite, "--launcher", "replay", "--from", self.root / "recorded",
                "--golden_dir", self.goldens, "--results_dir", self.root / "results", *more]  # fmt: skip

    def promote(self, case: str, faster: float = 1.0) -> None:
        """A golden of five runs of what the first night's first run measured, that much faster."""
        (run,) = (run for run in self.newest().cases if run.planned.name == case)
        record = run.runs[0].record
        assert record is not None
        measured = json.loads((self.newest().night_dir / "report" / "night.json").read_text())
        figures = next(case_row for case_row in measured["cases"] if case_row["name"] == case)["metrics"]
        metrics: dict[str, Any] = {
            "tflops_per_gpu": GoldenMetric(value=figures["tflops_per_gpu"]["median"] * faster, relative_spread=0.002),
            "peak_allocated_bytes": GoldenMetric(value=figures["peak_allocated_bytes"]["value"]),
        }
        golden = build_golden(record, {}, num_runs=5).model_copy(update={"metrics": metrics})
        write_golden(self.goldens, record.spec, golden)

    def newest(self) -> Any:
        """The last night."""
        return read_night(max(self.nights.iterdir(), key=lambda path: path.stat().st_mtime_ns))


def cut_short(night_dir: Path, num_events: int, folder: Path) -> None:
    """The night as a kill leaves it right after that event: the last run is not committed, and nothing came later."""
    shutil.copytree(night_dir, folder)
    shutil.rmtree(folder / "report")
    lines = (folder / EVENTS).read_bytes().splitlines(keepends=True)
    kept, gone = lines[:num_events], lines[max(0, num_events - 1) :]
    (folder / EVENTS).write_bytes(b"".join(kept))
    for event in map(json.loads, gone):
        if event["kind"] == "started":
            (run_dir_of(folder, event["case"], event["number"]) / "record.json").unlink()
