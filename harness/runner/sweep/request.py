"""All that one `mbr-perf sweep` asks for."""

from dataclasses import dataclass, field
from pathlib import Path

from harness.launch.rendezvous import Nodes
from harness.recipes.request import Request
from harness.records.batch import BatchGate, BatchLaunch
from harness.runner.request import RunRequest
from harness.runner.sweep.over import Over


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """The request that is varied, by what, how often, and how its runs are launched and judged.

    ``control``: values of axes, as :func:`read_control` takes them; empty for no recompute where recompute is varied,
    and for the request itself where it is not. ``max_minutes`` counts from the first run on. ``sweep_dir``: the folder,
    which several nodes must share; None makes a new one.
    """

    asked: Request
    over: tuple[Over, ...]
    title: str = ""
    grid: bool = False
    repeats: int = 1
    control: str = ""
    max_minutes: float | None = None
    prune: bool = True
    margin: float = 0.06
    force: frozenset[str] = frozenset()
    launch: BatchLaunch = field(default_factory=BatchLaunch)
    gate: BatchGate = field(default_factory=BatchGate)
    results_dir: Path | None = None
    sweep_dir: Path | None = None

    def run_request(self, asked: Request) -> RunRequest:
        """One cell's request, as the checks of `mbr-perf run` take it."""
        return RunRequest(
            asked=asked,
            force=self.force,
            launcher=self.launch.launcher,
            nodes=Nodes(),
            pass_env=self.launch.pass_env,
        )
