"""A night whose cases are launched and not replayed: Ctrl-C leaves what was measured, and it is resumed."""

import json
import signal

import pytest

from harness.launch.processes import is_alive
from tests.faults.stage import RECIPE, SETTINGS

REQUEST = f"model_recipe_name: {RECIPE}, gpu: h100, set_values: [{', '.join(SETTINGS)}]"
SUITE = f"""title: Two cases
cases:
  - {{name: one, golden: optional, request: {{{REQUEST}}}}}
  - {{name: two, golden: optional, request: {{{REQUEST}, recompute_modules: none}}}}
"""


@pytest.mark.slow
def test_an_interrupted_night_keeps_its_first_case_and_is_resumed(stage, started, tmp_path):
    (tmp_path / "suite.yaml").write_text(SUITE)
    stage.let(wait="/nowhere", where="cases/two")
    with started(stage.command("nightly", tmp_path / "suite.yaml", "--results_dir", tmp_path, "--json")) as night:
        there = night.victims(until=lambda: list(tmp_path.glob("nights/*/cases/two/*")) != [], rank=2, sampler=1)
        night.process.send_signal(signal.SIGINT)
        code, _, err = night.ended()
    assert code == 130, err
    assert not [process for kind in there.values() for process in kind if is_alive(process)]
    (night_dir,) = (tmp_path / "nights").iterdir()
    (first,) = night_dir.glob("cases/one/*/record.json")
    before = first.read_bytes()
    stage.let()
    with started(stage.command("nightly", "--resume", night_dir, "--json")) as night:
        code, out, err = night.ended()
    assert code == 0, err
    assert [case["outcome"] for case in json.loads(out)["cases"]] == ["pass", "pass"]
    assert first.read_bytes() == before
