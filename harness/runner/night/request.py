"""All that one `mbr-perf nightly` asks for."""

from dataclasses import dataclass, field
from pathlib import Path

from harness.recipes.request import Request
from harness.records.batch import BatchLaunch
from harness.records.job import SlurmOptions
from harness.runner.request import RunRequest


@dataclass(frozen=True)
class AaRequest:
    """An A/A of so many pairs, of the named case or of the cheapest one."""

    case: str = ""
    num_pairs: int = 4


@dataclass(frozen=True, kw_only=True)
class NightRequest:
    """Which cases of which suite, and how their runs are launched, repeated and judged.

    ``suite``: a name or a path; ``only``: patterns of case names; ``shard``: ``i/n``, empty for all. ``golden_dir`` and
    ``results_dir`` None: the usual ones. ``slurm``: runs are jobs of a cluster, not of this machine. ``aa`` None: no A/A.
    """

    suite: str
    only: tuple[str, ...] = ()
    shard: str = ""
    confirm: int = 2
    retries: int = 1
    launch: BatchLaunch = field(default_factory=BatchLaunch)
    slurm: SlurmOptions | None = None
    golden_dir: Path | None = None
    recipes_dir: Path | None = None
    results_dir: Path | None = None
    accept_differences: tuple[str, ...] = ()
    fail_on_improvement: bool = False
    aa: AaRequest | None = None

    def run_request(self, asked: Request) -> RunRequest:
        """One case's request, as the checks of `mbr-perf run` take it."""
        return RunRequest(asked=asked, launcher=self.launch.launcher, pass_env=self.launch.pass_env)
