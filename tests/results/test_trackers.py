"""The guide's code for MLflow and Weights & Biases sends a run's settings, figures and steps."""

import json
import re
import sys
from unittest.mock import MagicMock

import pytest

from tests.commands import ROOT

CODE = re.findall(r"```python\n(.*?)```", (ROOT / "harness" / "results" / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_tracker_gets_settings_figures_and_steps(tracker, replay, tmp_path, monkeypatch):
    assert replay("ok").code == 0
    path = next((tmp_path / "results" / "runs").glob("*/record.json"))
    record = json.loads(path.read_text())
    (code,) = (code for code in CODE if f"import {tracker}\n" in code)
    assert len(code.splitlines()) <= 13
    monkeypatch.setitem(sys.modules, tracker, library := MagicMock())  # a large package that tests do not install

    exec(re.sub(r'load_run\(".*?"\)', f"load_run({str(path.parent)!r})", code), {})

    sent = str(library.mock_calls)
    assert record["run_id"] in sent
    for step in record["ranks"][-1]["steps"]:
        assert f"'seconds': {step['seconds']!r}" in sent and f"step={step['step']}" in sent
    assert f"'num_layers': {record['spec']['model']['num_layers']}" in sent.replace("model.", "")
    assert "peak_allocated_bytes" in sent
