"""Runs programs under real transformer-engine Python, in processes of their own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.trace import TraceFile, TraceRequest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def _module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def te_folder(pytestconfig):
    """The package that `scripts/check --te VERSION` fetched."""
    version = pytestconfig.getoption("--te")
    folder = _module(ROOT / "scripts" / "check.d" / "fetch_te.py").folder_of(version)
    if not folder.is_dir():
        pytest.skip(f"no transformer-engine in {folder}: run scripts/check --te {version} with network access")
    return folder


@pytest.fixture(scope="session")
def models():
    """Published models at full width, which the tests of the tracer share."""
    return _module(ROOT / "tests" / "engine" / "tracing" / "models.py")


@pytest.fixture(scope="session")
def run_python():
    """Runs a program as the tracer does; the test fails with the end of its stderr if it fails."""

    def run(*arguments, timeout_s=600):
        settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *map(str, arguments)], env={**os.environ, **settings}, check=False, capture_output=True,
            text=True, timeout=timeout_s, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]

    return run


@pytest.fixture(scope="session")
def real_trace(run_python, te_folder, tmp_path_factory):
    """Traces cases over real transformer-engine Python; key -> fields of `ChunkTrace`, or {"failed": traceback}."""

    def trace(cases):
        folder = tmp_path_factory.mktemp("real")
        asked, out = folder / "request.json", folder / "out.json"
        asked.write_text(TraceRequest(cases=tuple(cases), implementation="transformer_engine").model_dump_json())
        run_python(HERE / "real_trace.py", te_folder, asked, out)
        return json.loads(out.read_text())

    return trace


@pytest.fixture(scope="session")
def stand_in_trace(run_python, tmp_path_factory):
    """Traces the same cases over the stand-in, as the planner does; returns the TraceFile."""

    def trace(cases):
        folder = tmp_path_factory.mktemp("stand_in")
        asked, out = folder / "request.json", folder / "out.json"
        asked.write_text(TraceRequest(cases=tuple(cases), implementation="transformer_engine").model_dump_json())
        run_python("-m", "harness.engine.trace", "--request", asked, "--out", out)
        return TraceFile.model_validate_json(out.read_text())

    return trace
