"""Real runs on this machine's processor against their predictions: every rank of every run."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness.launch.environment import SAFE_PATH, Host
from harness.records.run import RunRecord
from harness.runner.machine import installed_software
from harness.runner.prediction import predict

RUNS = (
    ("llama3_8b", "none"), ("llama3_8b", "core_attn"), ("llama3_8b", "layernorm"), ("llama3_8b", "mlp"),
    ("llama3_8b", "full:uniform:1"), ("llama3_8b", "full:uniform:2"), ("llama3_8b", "full:block:1"),
    ("mixtral_8x7b", "none"), ("mixtral_8x7b", "moe"), ("deepseek_v3", "none"), ("deepseek_v3", "mla_up_proj"),
)  # fmt: skip


def compare(host: Host) -> list[dict[str, Any]]:
    """One row per pipeline stage and run; RuntimeError when a run fails or is not predicted."""
    return [row for recipe, recompute in RUNS for row in _rows(_run(recipe, recompute, host), host)]


def _run(recipe: str, recompute: str, host: Host) -> RunRecord:
    with tempfile.TemporaryDirectory(prefix="mbr-perf-accuracy-") as folder:
        command = (
            host.python, "-m", "harness.cli.app", "run", "-mr", recipe, "-g", "cpu", "--recompute", recompute,
            "--max_steps", "3", "--run_dir", f"{folder}/run", "--json",
        )  # fmt: skip
        done = subprocess.run(
            command, env={**host.shell, **SAFE_PATH}, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode not in (0, 6):
            raise RuntimeError(f"{recipe} {recompute}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
        run_dir = json.loads(done.stdout)["run_dir"]
        record = Path(run_dir, "record.json").read_bytes()
        return RunRecord.model_validate_json(record)


def _rows(record: RunRecord, host: Host) -> list[dict[str, Any]]:
    """The meter adds what lives between steps to what one step allocates; buffers kept since earlier steps are neither."""
    made = predict(record.spec, installed_software(), "local", host)
    if made.prediction is None:
        raise RuntimeError(f"{record.spec.recipe} {record.spec.recompute.text}: {made.reason}")
    rows = []
    for stage in made.prediction.stages:
        ranks = [r for r in record.ranks if r.coordinates and r.coordinates.pp == stage.pp_rank]
        measured = max((r.memory.max_allocated_bytes or 0) for r in ranks if r.memory)
        predicted = stage.total - stage.overhead
        rows.append(
            {
                "recipe": record.spec.recipe, "recompute": record.spec.recompute.text, "stage": stage.pp_rank,
                "predicted_bytes": predicted, "measured_bytes": measured, "error": round(predicted / measured - 1, 5),
            }
        )  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One line per stage."""
    lines = ["| recipe | recompute | stage | predicted MB | measured MB | error |", "|---|---|---:|---:|---:|---:|"]
    return lines + [
        f"| {r['recipe']} | {r['recompute']} | {r['stage']} | {r['predicted_bytes'] / 1e6:.2f} | "
        f"{r['measured_bytes'] / 1e6:.2f} | {r['error'] * 100:+.2f} % |"
        for r in rows
    ]
