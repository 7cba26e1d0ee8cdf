"""Runs programs under real transformer-engine Python, in processes of their own."""

import importlib.util
import json
from pathlib import Path

import pytest

from harness.records.trace import TraceFile, TraceRequest
from tests.engine.conftest import ROOT, answer_of
from tests.engine.tracing import models

HERE = Path(__file__).parent


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


@pytest.fixture(scope="session", name="models")
def _models():
    """Published models at full width, which the tests of the tracer share."""
    return models


@pytest.fixture(scope="session")
def real_trace(te_folder, tmp_path_factory):
    """Traces cases over real transformer-engine Python; key -> fields of `ChunkTrace`, or {"failed": traceback}."""

    def trace(cases):
        folder = tmp_path_factory.mktemp("real")
        asked, out = folder / "request.json", folder / "out.json"
        asked.write_text(TraceRequest(cases=tuple(cases), implementation="transformer_engine").model_dump_json())
        answer_of(HERE / "real_trace.py", te_folder, asked, out)
        return json.loads(out.read_text())

    return trace


@pytest.fixture(scope="session")
def stand_in_trace(tmp_path_factory):
    """Traces the same cases over the stand-in, as the planner does; returns the TraceFile."""

    def trace(cases):
        folder = tmp_path_factory.mktemp("stand_in")
        asked, out = folder / "request.json", folder / "out.json"
        asked.write_text(TraceRequest(cases=tuple(cases), implementation="transformer_engine").model_dump_json())
        answer_of("-m", "harness.engine.trace", "--request", asked, "--out", out)
        return TraceFile.model_validate_json(out.read_text())

    return trace
