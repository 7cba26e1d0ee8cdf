"""`mbr-perf run` as typed: real megatron-core under real torchrun, two ranks with gloo."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.store import read_run

pytestmark = [pytest.mark.train, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
SMALL = (
    "--set", "model.hidden_size=64", "--set", "model.ffn_hidden_size=128",
    "--set", "model.vocab_size=256", "-sl", "64", "--max_steps", "3", "--num_layers", "2",
)  # fmt: skip
REQUEST = ("run", "-m", "llama", "-mr", "llama3_8b", "-g", "cpu", "--recompute_modules", "core_attn,layernorm", *SMALL)


def command(results, *arguments):
    return [sys.executable, "-m", "harness.app", *REQUEST, "--results_dir", str(results), *arguments]


def train(results, *arguments):
    done = subprocess.run(
        command(results, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert (results / "runs").is_dir(), done.stderr
    (run_dir, *_) = sorted((results / "runs").iterdir(), reverse=True)
    return done, run_dir


@pytest.fixture(name="trained", scope="module")
def _trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained"))


def test_it_trains_and_passes(trained):
    done, run_dir = trained
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split()[0] == "OK:"
    assert str(run_dir) in done.stdout
    severities = [finding.severity for finding in read_run(run_dir).findings]
    assert severities.count("warning") == done.stderr.count("Warning:") > 0


def test_every_rank_leaves_every_step(trained):
    record = read_run(trained[1])
    assert record.status == "ok"
    assert [rank.rank for rank in record.ranks] == [0, 1]
    assert [[step.step for step in rank.steps] for rank in record.ranks] == [[0, 1, 2], [0, 1, 2]]
    assert all(rank.finished and rank.steps[0].seconds > 0 for rank in record.ranks)
    assert [rank.coordinates.pp for rank in record.ranks] == [0, 1]
    assert all(5.0 < step.loss < 6.0 for step in record.ranks[1].steps)  # ln 256 = 5.55 before it learns
    assert all(rank.memory.max_allocated_bytes > rank.memory.static_bytes > 0 for rank in record.ranks)


def test_the_built_layers_recompute_what_was_asked(trained):
    record = read_run(trained[1])
    assert [rank.recompute.modules for rank in record.ranks] == [{"core_attn": 1, "layernorm": 1}] * 2
    assert record.effective.modules == {"core_attn": 2, "layernorm": 2}
    assert record.suspect == ()


def test_the_prediction_stands_beside_the_measurement(trained):
    done, run_dir = trained
    record = read_run(run_dir)
    measured = max(rank.memory.max_allocated_bytes for rank in record.ranks)
    assert record.no_prediction == ""
    assert record.prediction.peak_bytes == pytest.approx(measured, rel=0.05)
    assert record.prediction.step_time_s is None
    assert "(predicted " in done.stdout.splitlines()[0]


@pytest.mark.long
def test_adapters_train_in_the_memory_that_was_predicted_and_other_weights_have_no_gradients(tmp_path):
    adapters = ("--set", "peft.dim=4", "--set", "peft.target_modules=[linear_qkv, linear_fc2]")
    done, run_dir = train(tmp_path, "--task", "peft", *adapters, "--recompute_modules", "mlp", "-ng", "1", "-pp", "1")
    assert done.returncode == 0, done.stderr
    record = read_run(run_dir)
    (rank,) = record.ranks
    assert record.prediction.peak_bytes == pytest.approx(rank.memory.max_allocated_bytes, rel=0.05)
    # linear_qkv: 64 -> 64 + 2 * 16, linear_fc2: 128 -> 64; main gradients and Adam's two moments, in fp32
    trained = 2 * 4 * (64 + 96 + 128 + 64)
    assert rank.memory.after_setup_bytes == 4 * (rank.num_parameters + trained)
    assert rank.steps[-1].loss != rank.steps[0].loss


def test_the_run_folder_is_whole(trained):
    _, run_dir = trained
    names = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}
    expected = {"spec.json", "plan.txt", "record.json", "ranks/launch.json", "ranks/outcome.json", "logs/launcher.log"}
    expected |= {f"ranks/rank_00{r}{end}" for r in (0, 1) for end in (".json", ".progress.jsonl")}
    expected |= {f"logs/rank_00{r}.log" for r in (0, 1)}
    assert names >= expected
    assert not any(name.endswith(".tmp") for name in names)
    assert "harness.engine.worker" in (run_dir / "plan.txt").read_text()


def test_progress_leaves_nothing_behind_in_a_file(trained):
    assert [line.partition(" ")[0] for line in trained[0].stderr.splitlines()] == ["llama3_8b", "Warning:"]
