"""What a login node without torch, megatron-core, transformer-engine and pynvml can do: everything but train."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.goldens import golden_text
from harness.records.store import read_run

ROOT = Path(__file__).parents[2]
REPLAYS = ROOT / "tests" / "data" / "replay"
ABSENT = ("torch", "megatron", "transformer_engine", "pynvml", "numpy")
PACKAGES = ("torch", "megatron-core", "transformer-engine", "nvidia-ml-py", "numpy")
SITECUSTOMIZE = f"""
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {ABSENT!r} else self.finder.find_spec(name, path, target)

    def find_distributions(self, context):
        if context.name in {PACKAGES!r} or not hasattr(self.finder, "find_distributions"):
            return iter(())
        return self.finder.find_distributions(context)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


@pytest.fixture
def login_node(tmp_path):
    """Run the command where nothing of the training stack can be imported, not by child processes either."""
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def run(*arguments):
        command = [sys.executable, "-m", "harness.app", *map(str, arguments)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def test_the_stack_is_really_absent_there(login_node):
    done = login_node("doctor", "--json", "--results_dir", "results")
    found = {line["name"]: line["found"] for line in json.loads(done.stdout)["lines"]}
    assert found["torch"].startswith("not installed")
    assert found["megatron-core"].startswith("not installed")
    assert found["GPU"].startswith("none found (")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--help",), "Performance harness"),
        (("run", "--help"), "--recompute_modules"),
        (("recipes", "list"), "llama3_8b"),
        (("recipes", "show", "llama3_8b"), "Llama 3 8B"),
        (("recipes", "validate"), "operating points"),
        (("rules", "list"), "rules; "),
        (("golden", "list"), ""),
        (("run", "-mr", "llama3_8b", "--dryrun", "-v"), "running on cpu: no NVIDIA GPU on this machine"),
        (("run", "-mr", "llama3_8b", "-g", "h100", "-ng", "8", "--dryrun"), "8 x H100 80GB SXM"),
        (("check", "-mr", "llama3_8b", "-g", "h100", "-ng", "8"), "8 x H100"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_works_without_the_training_stack(login_node, arguments, message):
    done = login_node(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert message in done.stdout


@pytest.mark.slow
def test_recorded_runs_are_replayed_and_judged_there(login_node, tmp_path, make_record, make_golden):
    recorded = ("-mr", REPLAYS / "replayed.yaml", "-g", "cpu", "--launcher", "replay", "--from", REPLAYS / "ok")
    done = login_node("run", *recorded, "--results_dir", tmp_path / "results", "--json")
    record = read_run(json.loads(done.stdout)["run_dir"])
    assert (done.returncode, record.status) == (0, "ok")
    golden = tmp_path / "golden.json"
    golden.write_text(golden_text(make_golden(record, {"peak_allocated_bytes": 1_000_000})))
    compared = login_node("compare", record.run_id, golden, "--results_dir", tmp_path / "results")
    assert (compared.returncode, compared.stdout.splitlines()[0].split()[0]) == (5, "REGRESSION:")


@pytest.mark.slow
def test_a_run_there_is_refused_with_what_is_missing(login_node, tmp_path):
    done = login_node("run", "-mr", "llama3_8b", "-g", "cpu", "--results_dir", tmp_path / "results")
    assert done.returncode == 2
    assert "torch and megatron-core not installed" in done.stderr
    assert "pip install 'mbr-perf[train]'" in done.stderr
    assert not (tmp_path / "results").exists()
