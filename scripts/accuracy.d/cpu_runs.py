"""Real runs on this machine's processor against their predictions: every stage of every run."""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import published
from page import Page, table

from harness.experiment.experiment import ExperimentSpec
from harness.launch.environment import SAFE_PATH, Host
from harness.launch.machine import installed_software
from harness.records.quoting import quoted_error
from harness.records.run import RunRecord
from harness.show.terminal import narrate
from harness.units import grouped


@dataclass(frozen=True)
class Variant:
    """One layout of a recipe's cpu point, and the settings that differ in effect there."""

    name: str
    recipe: str
    options: tuple[str, ...]
    settings: tuple[str, ...]


# The router of an untrained model sends tokens where it likes; a prediction takes them as evenly spread.
_BALANCED = ("--set", "model.moe.moe_router_force_load_balancing=true")
_TP2 = ("-tp", "2", "-pp", "1")
_UNFUSED = ("--set", "kernels.attention_backend=unfused")
_LORA = ("--task", "peft")
_FULL = ("full:uniform:1", "full:block:1")

VARIANTS = (
    Variant("dense PP2", "llama3_8b", (), (
        "none", "core_attn", "layernorm", "mlp", "core_attn,layernorm,mlp", *_FULL, "full:uniform:2",
    )),
    Variant("dense PP2 VPP2", "llama3_8b", ("-vp", "2"), ("none", "mlp", *_FULL)),
    Variant("dense TP2", "llama3_8b", _TP2, ("none", "core_attn", "layernorm", "mlp", *_FULL)),
    Variant("dense TP2, whole sequences", "llama3_8b", (*_TP2, "--set", "parallelism.sequence_parallel=false"), (
        "full:uniform:1:distributed",
    )),
    Variant("dense TP2, unfused", "llama3_8b", (*_TP2, *_UNFUSED), ("none", "core_attn")),
    Variant("MoE EP2", "mixtral_8x7b", _BALANCED, ("none", "core_attn", "layernorm", "moe", *_FULL, "full:uniform:2")),
    Variant("MoE EP2, all-gather", "mixtral_8x7b",
            (*_BALANCED, "--set", "kernels.moe_token_dispatcher_type=allgather"), ("none",)),
    Variant("MoE PP2", "mixtral_8x7b", (*_BALANCED, "-pp", "2", "-ep", "1"), ("none", "moe", "full:uniform:1")),
    Variant("MoE EP2, natural routing", "mixtral_8x7b", (), ("none",)),
    Variant("LoRA PP2", "llama3_8b", _LORA, ("none", "core_attn", "mlp", *_FULL)),
    Variant("LoRA PP2 VPP2", "llama3_8b", (*_LORA, "-vp", "2"), ("none", "mlp")),
    Variant("LoRA TP2", "llama3_8b", (*_LORA, *_TP2), ("none", "mlp", "full:uniform:1")),
    Variant("LoRA of linear_qkv, PP2", "llama3_8b", (*_LORA, "--set", "peft.target_modules=[linear_qkv]"), ("none", "mlp")),
    Variant("LoRA of MoE EP2", "mixtral_8x7b", (*_LORA, *_BALANCED), ("none", "moe", "full:uniform:1")),
    Variant("MLA EP2", "deepseek_v3", _BALANCED, (
        "none", "core_attn", "layernorm", "mla_up_proj", "shared_experts", "moe", "mlp",
        "layernorm,mla_up_proj,shared_experts", *_FULL,
    )),
    Variant("MLA TP2", "deepseek_v3", (*_BALANCED, "-tp", "2", "-ep", "1"), ("none", "mla_up_proj")),
    Variant("MLA EP2, natural routing", "deepseek_v3", (), ("none",)),
)  # fmt: skip


def compare(host: Host, measured: Path | None = None) -> list[dict[str, Any]]:
    """Return a row per pipeline stage and run; RuntimeError if a run fails or has no prediction.

    ``measured``: rows of earlier runs, whose peaks are compared with new predictions; other settings are trained.
    """
    kept = json.loads(measured.read_text())["rows"] if measured else []
    cells = ((variant, setting) for variant in VARIANTS for setting in variant.settings)
    return [row for variant, setting in cells for row in _rows(variant, setting, host, kept)]


def _measured(variant: Variant, recompute: str, host: Host) -> tuple[ExperimentSpec, dict[int, int]]:
    with tempfile.TemporaryDirectory(prefix="mbr-perf-accuracy-") as folder:
        run_dir = _document(variant, recompute, host, "--run_dir", f"{folder}/run")["run_dir"]
        record = RunRecord.model_validate_json(Path(run_dir, "record.json").read_bytes())
    peaks: dict[int, int] = {}
    for rank in record.ranks:
        if rank.coordinates and rank.memory:
            stage = rank.coordinates.pp
            peaks[stage] = max(peaks.get(stage, 0), rank.memory.max_allocated_bytes or 0)
    return record.spec, peaks


def _kept(
    variant: Variant, recompute: str, host: Host, rows: list[dict[str, Any]]
) -> tuple[ExperimentSpec, dict[int, int]]:
    document = _document(variant, recompute, host, "--dryrun")
    spec = ExperimentSpec.model_validate_json(json.dumps(document["spec"]))
    return spec, {row["stage"]: row["measured_bytes"] for row in rows}


def _document(variant: Variant, recompute: str, host: Host, *more: str) -> dict[str, Any]:
    words = ("-mr", variant.recipe, "-g", "cpu", *variant.options, "--recompute", recompute, "--max_steps", "2", *more)
    return answer(host, "run", *words, codes=(0, 6))


def answer(host: Host, *words: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Return the JSON that a command of mbr-perf prints; RuntimeError with its error where it ends with another code."""
    narrate(" ".join(("mbr-perf", *words)))
    command = (host.python, "-m", "harness.app", *words, "--json")
    done = subprocess.run(command, env={**host.shell, **SAFE_PATH}, capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}: {quoted_error(done.stderr)}")
    return dict(json.loads(done.stdout))


def _rows(variant: Variant, recompute: str, host: Host, kept: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    own = [row for row in kept if (row["variant"], row["recompute"]) == (variant.name, recompute)]
    spec, peaks = _kept(variant, recompute, host, own) if own else _measured(variant, recompute, host)
    for stage in published.predicted(spec, installed_software(), host).stages:
        predicted, measured = stage.total, peaks[stage.pp_rank]
        yield {
            "variant": variant.name, "recipe": variant.recipe, "recompute": recompute, "stage": stage.pp_rank,
            "predicted_bytes": predicted, "measured_bytes": measured, "error": round(predicted / measured - 1, 5),
        }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return Markdown lines with the mean and largest error by variant."""
    return table("variant | stages: | mean abs: | largest:", (
        (name, len(errors), f"{sum(errors) / len(errors):.2%}", f"{max(errors):.2%}")
        for name, errors in grouped((row["variant"], abs(row["error"])) for row in rows).items()
    ))  # fmt: skip


def stages(rows: list[dict[str, Any]]) -> list[str]:
    """Return a Markdown line per stage."""
    return table("variant | recompute | stage: | predicted MB: | measured MB: | error:", (
        (r["variant"], r["recompute"], r["stage"], *(f"{r[name] / 1e6:.2f}" for name in ("predicted_bytes", "measured_bytes")),
         f"{r['error'] * 100:+.2f} %")
        for r in rows
    ))  # fmt: skip


def page(host: Host, measured: Path | None = None) -> Page:
    """Compare real runs on this machine's processor, or those kept in ``measured``: every stage of every run."""
    rows = compare(host, measured)
    errors = sorted(abs(row["error"]) for row in rows)
    within = sum(error <= 0.01 for error in errors)
    headline = f"{within} of {len(rows)} stages within 1 %, the worst off by {errors[-1] * 100:.2f} %."
    title = "Predicted and measured peaks: runs on a processor"
    return Page(title, headline, {"rows": rows}, summary(rows), stages(rows))
