"""A night of the smoke suite as people run it: real megatron-core training on the CPU, interrupted and resumed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.history.store import read_history
from harness.records.golden import GoldenMetric
from harness.records.goldens import write_golden
from harness.records.night import read_night
from tests.conftest import build_golden
from tests.environments import environment

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "harness.app", "nightly")


def first_committed(results, process):
    """Wait for the first run; the night's folder."""
    while process.poll() is None:
        if found := list(results.glob("nights/*/cases/*/*/record.json")):
            return found[0].parents[3]
        time.sleep(0.05)
    raise AssertionError(f"the night ended by itself: {process.communicate()}")


SUITE = """title: One case
cases:
  - name: dense
    golden: optional
    request: {model_recipe_name: llama3_8b, gpu: cpu, max_steps: 5, eval_time_start_step: 1, seq_length: 64}
"""


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_the_smoke_suite_is_interrupted_resumed_and_passes_against_the_committed_goldens(tmp_path):
    results = tmp_path / "results"
    begun = subprocess.Popen((*COMMAND, "cpu_smoke", "--results_dir", str(results), "--json"), cwd=ROOT,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    night_dir = first_committed(results, begun)
    begun.send_signal(signal.SIGINT)
    out, err = begun.communicate(timeout=120)
    document = json.loads(out)
    assert begun.returncode == 130
    assert document["num_runs_missing"] > 0
    assert f"nightly --resume {night_dir}" in err
    assert not read_history(results)
    done = subprocess.run((*COMMAND, "--resume", str(night_dir), "--json"), cwd=ROOT, capture_output=True, text=True,
                          check=False)  # fmt: skip
    document = json.loads(done.stdout)
    outcomes = {case["name"]: case["outcome"] for case in document["cases"]}
    assert outcomes == {
        "dense.none": "pass",
        "dense.mlp": "pass",
        "dense.core_attn,layernorm": "pass",
        "dense_under_a_limit": "oom",
    }
    assert (done.returncode, document["outcome"]) == (0, "pass")
    night = read_night(night_dir)
    assert night.is_finished
    assert [len(case.runs) for case in night.cases] == [1, 1, 1, 1]
    assert len(read_history(results)) == 4


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.long
def test_pairs_of_old_and_new_build_decide_what_the_golden_alone_leaves_open(tmp_path):
    suite = SUITE.replace("golden: optional", "thresholds: {tflops_per_gpu: 0.6}")  # other tests may share the cores
    (tmp_path / "suite.yaml").write_text(suite.replace("max_steps: 5", "max_steps: 8"))
    unchanged, slowed = environment(tmp_path / "unchanged"), environment(tmp_path / "slowed", sleep_s=0.5)
    asked = (str(tmp_path / "suite.yaml"), "--golden_dir", str(tmp_path / "goldens"), "--results_dir", str(tmp_path / "results"))  # fmt: skip
    (tmp_path / "goldens").mkdir()
    night = json.loads(_night(sys.executable, *asked).stdout)
    record = read_night(night["night_dir"]).cases[0].runs[0].record
    speed = night["cases"][0]["metrics"]["tflops_per_gpu"]["median"]
    metrics = {"tflops_per_gpu": GoldenMetric(value=speed * 5, relative_spread=0.1)}
    write_golden(tmp_path / "goldens", record.spec, build_golden(record, {}, num_runs=1).model_copy(update={"metrics": metrics}))  # fmt: skip
    alone = json.loads(_night(sys.executable, *asked, "--confirm", "0").stdout)["cases"][0]
    assert alone["outcome"] in ("inconclusive", "regression")
    green = _night(sys.executable, *asked, "--against", str(unchanged), "--pairs", "6")
    red = _night(str(slowed), *asked, "--against", str(unchanged), "--pairs", "5")
    for done, expected in ((red, "regression"), (green, "pass")):
        case = json.loads(done.stdout)["cases"][0]
        speed = next(row for row in case["pairs"]["comparison"] if row["metric"] == "tflops_per_gpu")
        assert (case["outcome"], speed["verdict"], done.returncode) == (expected, expected, 5 if expected == "regression" else 0)  # fmt: skip


def _night(python, *arguments):
    command = (python, "-m", "harness.app", "nightly", *arguments, "--json")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
