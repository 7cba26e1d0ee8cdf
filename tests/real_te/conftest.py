"""Runs programs under real transformer-engine Python, in processes of their own."""

import json
import runpy
from pathlib import Path

import pytest

from harness.records.trace import TraceFile, TraceRequest
from tests.engine.conftest import ROOT, answer_of
from tests.engine.tracing import models

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def te_folder(pytestconfig):
    """The package that `scripts/check --te VERSION` fetched."""
    version = pytestconfig.getoption("--te")
    folder = runpy.run_path(str(ROOT / "scripts" / "check.d" / "fetch_te.py"))["folder_of"](version)
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
        asked, out = written(cases, tmp_path_factory.mktemp("real"))
        answer_of(HERE / "real_trace.py", te_folder, asked, out)
        return json.loads(out.read_text())

    return trace


def written(cases, folder):
    """The file of a request to trace these cases, and the one of its answer."""
    asked = folder / "request.json"
    asked.write_text(TraceRequest(cases=tuple(cases), implementation="transformer_engine").model_dump_json())
    return asked, folder / "out.json"


@pytest.fixture(scope="session")
def stand_in_trace(tmp_path_factory):
    """Traces the same cases over the stand-in, as the planner does; returns the TraceFile."""

    def trace(cases):
        asked, out = written(cases, tmp_path_factory.mktemp("stand_in"))
        answer_of("-m", "harness.engine.trace", "--request", asked, "--out", out)
        return TraceFile.model_validate_json(out.read_text())

    return trace
