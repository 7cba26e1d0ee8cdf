"""The two kinds of sweeps that are killed: one that trains, and one whose agent and ranks are played, with a sampler."""

import os
import random
import secrets
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.launch.environment import this_host
from harness.records.batches import SWEEP_FOLDERS, BatchLaunch
from harness.records.sweep import SweepPlan
from harness.resolve.recipe import Request
from harness.sweep.plan import plan_sweep
from harness.sweep.request import SweepRequest, split_over
from tests.faults.stage import RECIPE, ROOT, SETTINGS, Stage

SMALL = (
    "-mr", "llama3_8b", "-g", "cpu", "--num_layers", "2", "-sl", "64", "-ms", "4", "--set", "model.hidden_size=64",
    "--set", "model.ffn_hidden_size=128", "--set", "model.vocab_size=256",
)  # fmt: skip
RATES = ",".join(f"{n}.0e-4" for n in range(2, 10))


@dataclass
class Scene(ABC):
    """Sweeps of one kind below ``folder``. ``pace_s``: from the start of a sitting to its first finished run."""

    folder: Path
    repeats: int
    pace_s: float
    kinds: tuple[str, ...]

    @property
    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Of the harness."""

    @abstractmethod
    def begun(self) -> tuple[Path, tuple[str, ...]]:
        """A new sweep's folder, and the command that starts it."""

    def resumed(self, sweep_dir: Path) -> tuple[str, ...]:
        """The command that resumes it."""
        return self.command("sweep", "--resume", sweep_dir, "--json")

    @abstractmethod
    def command(self, *words: object) -> tuple[str, ...]:
        """The command line of mbr-perf."""

    def start(self, command: tuple[str, ...], log: Path) -> "subprocess.Popen[bytes]":
        """A harness whose answer is in ``log.out`` and narration in ``log.err``."""
        with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("ab") as err:
            return subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=out, stderr=err,
                                    stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip


class Training(Scene):
    """Two real ranks on the CPU, forked from a warm parent."""

    def __init__(self, folder: Path, repeats: int) -> None:
        super().__init__(folder, repeats, pace_s=30.0, kinds=("harness", "agent", "rank", "warm parent"))

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ

    def begun(self) -> tuple[Path, tuple[str, ...]]:
        sweep_dir = self.folder / f"trained-{secrets.token_hex(4)}"
        over = ("--over", f"optimizer.lr={RATES}", "--repeats", self.repeats, "--sweep_dir", sweep_dir, "--json")
        return sweep_dir, self.command("sweep", *SMALL, *over)

    def command(self, *words: object) -> tuple[str, ...]:
        return (sys.executable, "-m", "harness.app", *map(str, words))


class Played(Scene):
    """On a stage: the harness, its records and its NVML sampler are real, agent and ranks are played."""

    def __init__(self, folder: Path, repeats: int, rates: str = RATES) -> None:
        self._rates = rates
        super().__init__(folder, repeats, pace_s=8.0, kinds=("harness", "agent", "rank", "sampler"))
        self.stage = Stage(folder / "stage")
        self._plan = self._planned()

    @property
    def environment(self) -> Mapping[str, str]:
        return self.stage.environment

    def command(self, *words: object) -> tuple[str, ...]:
        return tuple(self.stage.command(*words, "--no_warm"))

    def begun(self) -> tuple[Path, tuple[str, ...]]:
        sweep_dir = self.folder / f"played-{secrets.token_hex(4)}"
        (sweep_dir / SWEEP_FOLDERS.entries).mkdir(parents=True)
        SWEEP_FOLDERS.write_plan(sweep_dir, self._plan.model_copy(update={"sweep_id": sweep_dir.name}))
        return sweep_dir, self.resumed(sweep_dir)

    def _planned(self) -> SweepPlan:
        """A plan without predictions, which would cost more than all else."""
        asked = Request(model_recipe_name=str(RECIPE), gpu="h100", set_values=SETTINGS)
        over = (split_over(f"optimizer.lr={self._rates}"),)
        request = SweepRequest(asked=asked, over=over, repeats=self.repeats, launch=BatchLaunch(launcher="replay"))
        host = replace(this_host(), python=str(self.stage.python))
        plan = plan_sweep(request, host, asks_megatron=False)
        return plan.model_copy(update={"launch": BatchLaunch()})


def one_of(chance: random.Random, kinds: tuple[str, ...]) -> str:
    """Whom to kill next: every fourth time the harness, after which the sweep is resumed."""
    return "harness" if chance.random() < 0.25 else chance.choice(kinds[1:])
