"""The two kinds of sweeps that are killed: one that trains, and one whose agent and ranks are played, with a sampler."""

import os
import random
import secrets
import stat
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.launch.environment import this_host
from harness.recipes.request import Request
from harness.records.sweep import SweepLaunch, SweepPlan
from harness.records.sweeps import made_sweep_dir, write_plan
from harness.runner.sweep.over import split_over
from harness.runner.sweep.planning import plan_sweep
from harness.runner.sweep.request import SweepRequest
from tests.conftest import build_rank

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "tests" / "data" / "replay" / "replayed.yaml"
SMALL = (
    "-mr", "llama3_8b", "-g", "cpu", "--num_layers", "2", "-sl", "64", "-ms", "4", "--set", "model.hidden_size=64",
    "--set", "model.ffn_hidden_size=128", "--set", "model.vocab_size=256",
)  # fmt: skip
RATES = ",".join(f"{n}.0e-4" for n in range(2, 10))


@dataclass
class Scene(ABC):
    """Sweeps of one kind below ``folder``. ``pace_s``: from the start of a sitting to its first finished run."""

    folder: Path
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
        """The command that goes on with it."""
        return (*self.command, "sweep", "--resume", str(sweep_dir), "--json")

    @property
    def command(self) -> tuple[str, ...]:
        """How the product is called."""
        return (sys.executable, "-m", "harness.cli.app")

    def start(self, command: tuple[str, ...], log: Path) -> "subprocess.Popen[bytes]":
        """A harness whose answer is in ``log.out`` and narration in ``log.err``."""
        with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("ab") as err:
            return subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=out, stderr=err,
                                    stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip


class Training(Scene):
    """Two real ranks on the CPU, forked from a warm parent."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, pace_s=30.0, kinds=("harness", "agent", "rank", "warm parent"))

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ

    def begun(self) -> tuple[Path, tuple[str, ...]]:
        sweep_dir = self.folder / f"trained-{secrets.token_hex(4)}"
        over = ("--over", f"optimizer.lr={RATES}", "--repeats", "2", "--sweep_dir", str(sweep_dir), "--json")
        return sweep_dir, (*self.command, "sweep", *SMALL, *over)


class Played(Scene):
    """Two scripted H100: the harness, its records and its NVML sampler are real, agent and ranks are played."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, pace_s=8.0, kinds=("harness", "agent", "rank", "sampler"))
        self._driver = _scripted_driver(folder / "driver")
        self._plan = self._planned()
        self._python = self._interpreter()

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ | self._driver

    @property
    def command(self) -> tuple[str, ...]:
        words = f"import sys; sys.executable = {self._python!r}; from harness.cli.app import main; main()"
        return (sys.executable, "-c", words)

    def begun(self) -> tuple[Path, tuple[str, ...]]:
        sweep_dir = made_sweep_dir(self.folder / f"played-{secrets.token_hex(4)}")
        write_plan(sweep_dir, self._plan.model_copy(update={"sweep_id": sweep_dir.name}))
        return sweep_dir, self.resumed(sweep_dir)

    def resumed(self, sweep_dir: Path) -> tuple[str, ...]:
        return (*super().resumed(sweep_dir), "--no_warm")

    def _planned(self) -> SweepPlan:
        """A plan without predictions, which would cost more than all else."""
        settings = ("kernels.transformer_impl=local", "measure.max_steps=4")
        asked = Request(model_recipe_name=str(RECIPE), gpu="h100", set_values=settings)
        over = (split_over(f"optimizer.lr={RATES}"),)
        request = SweepRequest(asked=asked, over=over, repeats=4, launch=SweepLaunch(launcher="replay"))
        host = replace(this_host(), shell=dict(os.environ | self._driver))
        plan = plan_sweep(request, host, asks_megatron=False)
        return plan.model_copy(update={"launch": SweepLaunch()})

    def _interpreter(self) -> str:
        spec = next(cell.spec for cell in self._plan.cells if cell.spec)
        templates = self.folder / "templates"
        templates.mkdir()
        for number in range(spec.num_gpus):
            (templates / f"rank_{number:03d}.json").write_text(build_rank(spec, number, 0.05).model_dump_json())
        path = self.folder / "python"
        played = f"{sys.executable} {Path(__file__).with_name('played_agent.py')} {templates}"
        path.write_text(
            f'#!/bin/sh\n[ "$2" = harness.engine.agent ] && exec {played} "$@"\nexec {sys.executable} "$@"\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)


def _scripted_driver(folder: Path) -> dict[str, str]:
    """Environment in which NVML lists two H100."""
    folder.mkdir()
    source = ROOT / "tests" / "native" / "fake_nvml.c"
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, source, "-lpthread"],
                   check=True, capture_output=True)  # fmt: skip
    state = folder / "state"
    device = "name=NVIDIA_H100_80GB_HBM3 total=85899345920 used=1000000000"
    state.write_text("".join(f"gpu {n} uuid=GPU-{n} {device}\n" for n in (0, 1)))
    return {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML_STATE": str(state)}


def one_of(chance: random.Random, kinds: tuple[str, ...]) -> str:
    """Whom to kill next: every fourth time the harness, after which the sweep is resumed."""
    return "harness" if chance.random() < 0.25 else chance.choice(kinds[1:])
