"""Starts the rank scripts under real torchrun, once per group of cases."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

RANKS = Path(__file__).parent / "ranks"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torchrun(script, num_ranks, *arguments, env=None):
    """Run a rank script; fail the test with its output when it fails."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={num_ranks}", "--max-restarts=0",
               "--master-addr=127.0.0.1", f"--master-port={free_port()}", str(RANKS / script), *map(str, arguments)]  # fmt: skip
    root = Path(__file__).parents[2]
    settings = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": str(root), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        command, env={**os.environ, **settings, **(env or {})}, capture_output=True, text=True, timeout=300, check=False
    )


class Trained:
    """Results of one case: losses of the rank that has them, peaks (None: not watched) and layer flags per rank, gradients per rank."""

    def __init__(self, folder, name, num_ranks):
        self.folder, self.name, self.num_ranks = folder, name, num_ranks
        ranks = [json.loads((folder / f"rank_{r}.json").read_text())[name] for r in range(num_ranks)]
        self.losses = next(r["losses"] for r in reversed(ranks) if r["losses"])
        self.peaks = [r["peak"] for r in ranks]
        self.layers = [r["layers"] for r in ranks]

    def gradients(self):
        """Name -> gradient; a rank's own part where tensors are split, all ranks' names where layers are."""
        merged = {}
        for rank in range(self.num_ranks):
            for name, gradient in torch.load(self.folder / f"{self.name}.rank_{rank}.pt").items():
                merged[name if name not in merged else f"{name}@{rank}"] = gradient
        return merged


@pytest.fixture(scope="session")
def train_cases(tmp_path_factory):
    """Train many specs in one torchrun; returns name -> Trained. ``watched``: the names whose peaks are measured."""

    def run(specs, num_ranks, watched):
        folder = tmp_path_factory.mktemp("ranks")
        cases = [
            {"name": name, "spec": json.loads(spec.model_dump_json()), "is_watched": name in watched}
            for name, spec in specs.items()
        ]
        (folder / "cases.json").write_text(json.dumps({"cases": cases}))
        done = torchrun("equivalence.py", num_ranks, folder / "cases.json", folder)
        assert done.returncode == 0, done.stderr[-4000:]
        return {name: Trained(folder, name, num_ranks) for name in specs}

    return run
