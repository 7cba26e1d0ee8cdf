"""The guide's code for MLflow and Weights & Biases, run against the real libraries in an environment of their own."""

import json
import os
import re
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from tests.commands import ROOT

pytestmark = pytest.mark.long
TRACKERS = ("mlflow-skinny>=3", "wandb>=0.19")
CODE = re.findall(r"```python\n(.*?)```", (ROOT / "harness" / "results" / "README.md").read_text(), re.DOTALL)


@pytest.fixture(name="python", scope="module")
def _python():
    """The Python of an environment with both libraries and what mbr-perf needs, made once below the cache."""
    needs = (*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"], *TRACKERS)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mbr-perf"
    made = cache / f"trackers-{sha256(repr((needs, sys.version)).encode()).hexdigest()[:12]}"
    if not (made / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", made], check=True)
        pip = [made / "bin" / "python", "-m", "pip", "install", "-q", *needs]
        subprocess.run(pip, check=True)
        (made / "complete").touch()
    return made / "bin" / "python"


@pytest.fixture(name="record")
def _record(replay, tmp_path):
    assert replay("ok").code == 0
    return next((tmp_path / "results" / "runs").glob("*/record.json"))


@pytest.fixture(name="ask")
def _ask(python, tmp_path):
    """Run code in that environment, with stores below ``tmp_path``. Returns the last line that it prints."""

    def run(code):
        env = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": (tmp_path / "store").as_uri(),
                            "MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}  # fmt: skip
        done = subprocess.run([python, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().rpartition("\n")[2]

    return run


def guide(tracker, record):
    (code,) = (code for code in CODE if f"import {tracker}\n" in code)
    assert len(code.splitlines()) <= 13
    return re.sub(r'load_run\(".*?"\)', f"load_run({str(record.parent)!r})", code)


def test_mlflow_keeps_settings_figures_and_steps(ask, record):
    kept = json.loads(ask(guide("mlflow", record) + """
from mlflow import MlflowClient
import json
(run,) = MlflowClient().search_runs([mlflow.get_experiment_by_name("mbr-perf").experiment_id])
series = MlflowClient().get_metric_history(run.info.run_id, "seconds")
print(json.dumps([run.data.params, run.data.metrics, {point.step: point.value for point in series}]))
"""))  # fmt: skip
    params, metrics, steps = kept
    ran = json.loads(record.read_text())
    assert params["model.num_layers"] == str(ran["spec"]["model"]["num_layers"])
    assert metrics["peak_allocated_bytes"] > 0
    assert steps == {str(step["step"]): step["seconds"] for step in ran["ranks"][-1]["steps"]}


def test_wandb_keeps_the_run_under_its_own_id(ask, record, tmp_path):
    ask(guide("wandb", record))
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert record.parent.name in kept.name
    assert b"peak_allocated_bytes" in kept.read_bytes()
