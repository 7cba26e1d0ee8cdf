"""A machine with two scripted H100 on which agent and ranks are played; harness, sampler, records and commands are real."""

import json
import os
import stat
import sys
from pathlib import Path

from harness.records.rank import Device, LayerRecompute
from tests.conftest import build_rank, build_spec
from tests.native_libraries import scripted_nvml

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "tests" / "data" / "replay" / "replayed.yaml"
GPU = "NVIDIA H100 80GB HBM3"
SETTINGS = ("kernels.transformer_impl=local", "measure.max_steps=4")


class Stage:
    """Everything below ``folder``. Skips megatron-core and the tracer, which other tests cover."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.templates = folder / "templates"
        self.templates.mkdir(parents=True)
        self.python = folder / "python"
        self._interpreter()
        self._record_ranks()
        self.environment = dict(os.environ)

    def command(self, *words: object) -> list[str]:
        """``mbr-perf`` with that interpreter as its own."""
        called = f"import sys; sys.executable = {str(self.python)!r}; from harness.app import main; main()"
        return [sys.executable, "-c", called, *map(str, words)]

    def run_command(self, results: Path, *options: object) -> list[str]:
        """``mbr-perf run`` of the played model."""
        settings = [word for setting in SETTINGS for word in ("--set", setting)]
        return self.command("run", "-mr", RECIPE, "-g", "h100", *settings, "--results_dir", results, *options)

    def _record_ranks(self) -> None:
        """What ranks leave after a good run."""
        parallelism = {"pipeline_model_parallel_size": 2}
        batch = {"micro_batch_size": 1, "global_batch_size": 4, "seq_length": 256}
        spec = build_spec(num_gpus=2, parallelism=parallelism, batch=batch, measure={"max_steps": 4})
        for rank in range(spec.num_gpus):
            device = Device(kind="cuda", name=GPU, uuid=f"GPU-{rank}")
            built = LayerRecompute(num_layers=1, modules={"core_attn": 1, "layernorm": 1})
            record = build_rank(spec, rank, 0.05, device=device, recompute=built)
            memory = record.memory.model_copy(update={"max_device_used_bytes": None}) if record.memory else None
            text = record.model_copy(update={"memory": memory}).model_dump_json()
            (self.templates / f"rank_{rank:03d}.json").write_text(text)

    def let(self, **behaviour: object) -> None:
        """What ranks do instead: see `played_agent.py`."""
        (self.templates / "behaviour.json").write_text(json.dumps(behaviour))

    def _interpreter(self) -> None:
        driver, listing = self._driver(), self.folder / "listing.json"
        gpus = [{"index": n, "name": GPU, "uuid": f"GPU-{n}", "total_bytes": 85 * 10**9} for n in (0, 1)]
        listing.write_text(json.dumps({"driver": "580.65.06", "cuda": "13.0", "gpus": gpus}))
        played = f"{sys.executable} {Path(__file__).with_name('played_agent.py')} {self.templates}"
        self.python.write_text(
            f"""#!/bin/sh
case "$2 $3" in
"harness.engine.agent "*) exec {played} "$@" ;;
"harness.engine.nvml_device list") exec cat {listing} ;;
"harness.engine.nvml "*) {driver} exec {sys.executable} "$@" ;;
*) echo not played here >&2; exit 1 ;;
esac
"""
        )
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)

    def _driver(self) -> str:
        """Variables under which NVML is the scripted one, in shell syntax."""
        folder = self.folder / "driver"
        folder.mkdir()
        scripted_nvml(folder)
        self.let_driver()
        return f"LD_LIBRARY_PATH={folder} FAKE_NVML_STATE={folder / 'state'}"

    def let_driver(self, *lines: str) -> None:
        """Set what NVML reports from now on, in addition to two healthy H100: lines of `fake_nvml.c`. Read again whenever it changes."""
        gpus = (f"gpu {n} uuid=GPU-{n} name=NVIDIA_H100_80GB_HBM3 total=85899345920 used=1000000000" for n in (0, 1))
        state = self.folder / "driver" / "state"
        state.with_name("new").write_text("\n".join((*gpus, *lines)) + "\n")
        state.with_name("new").replace(state)
