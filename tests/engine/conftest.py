"""Starts ranks and rank scripts: in fresh processes, under torchrun, or forked with their imports done."""

import json
import os
import socket
import subprocess
import sys

import pytest

from tests.engine.prepared import ALONE, ROOT, SETTINGS, run_forked

RANKS = ROOT / "tests" / "engine" / "ranks"


@pytest.fixture(name="torch")
def _torch():
    return pytest.importorskip("torch")


@pytest.fixture(name="engine", scope="module")
def _engine():
    """The mapping of a spec, imported where transformer-engine is blocked; megatron-core's traces in os.environ go."""
    from harness.engine import cpu_backend

    before = dict(os.environ)
    cpu_backend.block_transformer_engine()
    from harness.engine import config

    yield config
    os.environ.clear()
    os.environ.update(before)


def run_python(*arguments, **environment):
    """A program of the interpreter of these tests, to its end; variables that are None are unset."""
    variables = {name: value for name, value in (os.environ | SETTINGS | environment).items() if value is not None}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=False)


def answer_of(*arguments, start=run_python, **environment):
    """What a program that must end well prints."""
    done = start(*arguments, **environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def torchrun(num_ranks, *arguments, **environment):
    """The same under torchrun."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    options = (f"--nproc-per-node={num_ranks}", "--max-restarts=0", "--master-addr=127.0.0.1", f"--master-port={port}")
    return run_python("-m", "torch.distributed.run", *options, *arguments, **environment)


def run_worker(folder, spec, start=run_forked, **environment):
    """Train ``spec`` in a run folder: by the worker alone, or as ``start`` does it."""
    for part in ("ranks", "logs"):
        (folder / part).mkdir()
    (folder / "spec.json").write_text(spec.model_dump_json())
    alone = ALONE if start is run_python else {}
    return start("-m", "harness.engine.worker", "--run_dir", folder, **alone | environment)


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
        import torch

        merged = {}
        for rank in range(self.num_ranks):
            for name, gradient in torch.load(self.folder / f"{self.name}.rank_{rank}.pt").items():
                merged[name if name not in merged else f"{name}@{rank}"] = gradient
        return merged


@pytest.fixture(scope="session")
def train_cases(tmp_path_factory):
    """Train many specs in one start of all ranks; returns name -> Trained. ``watched``: the names whose peaks are measured."""

    def run(specs, num_ranks, watched):
        folder = tmp_path_factory.mktemp("ranks")
        cases = [
            {"name": name, "spec": json.loads(spec.model_dump_json()), "is_watched": name in watched}
            for name, spec in specs.items()
        ]
        (folder / "cases.json").write_text(json.dumps({"cases": cases}))
        done = run_forked(RANKS / "equivalence.py", folder / "cases.json", folder, num_ranks=num_ranks)
        assert done.returncode == 0, done.stderr[-4000:]
        return {name: Trained(folder, name, num_ranks) for name in specs}

    return run
