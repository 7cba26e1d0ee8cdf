"""Runs the tracer and the scripts beside it in processes of their own: what they do to torch cannot be undone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.trace import TraceFile, TraceRequest
from tests.engine import shapes
from tests.engine.conftest import ROOT, SETTINGS
from tests.engine.tracing import models

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def tracers():
    """A tracer for each implementation that is asked for, which forks a process for each request."""
    made = {}

    def tracer(implementation):
        if implementation not in made:
            made[implementation] = subprocess.Popen(
                [sys.executable, HERE / "scripts" / "tracer.py", implementation], env=os.environ | SETTINGS, cwd=ROOT,
                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        return made[implementation]

    yield tracer
    for process in made.values():
        process.communicate(timeout=60)


@pytest.fixture(scope="session")
def trace(tracers, tmp_path_factory):
    """Traces cases as the planner does; returns the TraceFile."""

    def run(cases, implementation, **options):
        folder = tmp_path_factory.mktemp("trace")
        request = TraceRequest(cases=tuple(cases), implementation=implementation, **options)
        (folder / "request.json").write_text(request.model_dump_json())
        tracer = tracers(implementation)
        tracer.stdin.write(f"{folder / 'request.json'} {folder / 'out.json'}\n")
        tracer.stdin.flush()
        code = tracer.stdout.readline()
        assert code == "0\n", (folder / "out.err").read_text()[-4000:]
        return TraceFile.model_validate_json((folder / "out.json").read_text())

    return run


@pytest.fixture(scope="session", name="shapes")
def _shapes():
    """The small models that the engine's tests share."""
    return shapes


@pytest.fixture(scope="session", name="models")
def _models():
    """Published models at full width."""
    return models
