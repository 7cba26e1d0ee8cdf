"""Machines with scripted GPUs, for tests marked ``cuda``; `scripts/check --cuda` makes what they need."""

import json
from pathlib import Path

import pytest

from tests.scripted_cuda.lane import Machine

# Four layers of llama3_8b at full width. Every run starts from it.
RUN = ("-mr", "llama3_8b", "-g", "h100", "-c", "bf16", "-cp", "1", "--num_layers", "4", "-ms", "3")
LOCAL = ("--set", "kernels.transformer_impl=local", "--set", "optimizer.use_precision_aware_optimizer=false")


class Ran:
    """The exit code, the output and the records of a whole `mbr-perf run`."""

    def __init__(self, done, results):
        self.code, self.said = done.returncode, done.stdout + done.stderr
        self.folders = sorted(path.parent for path in (results / "runs").glob("*/record.json"))
        self.records = [json.loads((folder / "record.json").read_text()) for folder in self.folders]

    @property
    def record(self):
        assert self.records, self.said[-3000:]
        return self.records[-1]

    def peaks(self, name="max_allocated_bytes"):
        """Return a figure of every rank in GiB."""
        return [round(rank["memory"][name] / 2**30, 2) for rank in self.record["ranks"]]

    @property
    def device_used(self):
        """Return what NVML's samples found on every device, in GiB."""
        return [
            round(device["max_used_bytes"] / 2**30, 2) for node in self.record["nodes"] for device in node["devices"]
        ]


@pytest.fixture
def machine(tmp_path):
    """Make a machine with scripted GPUs in the test's folder."""

    def make(**changes):
        return Machine(tmp_path / f"machine{len(list(tmp_path.iterdir()))}", **changes)

    return make


@pytest.fixture
def whole_run(tmp_path):
    """Run `mbr-perf run` on a machine, to its end."""

    def run(machine: Machine, *arguments: str | Path, **options):
        results = machine.folder / "results"
        done = machine.mbr_perf("run", *RUN, *arguments, "--results_dir", results, **options)
        return Ran(done, results)

    return run
