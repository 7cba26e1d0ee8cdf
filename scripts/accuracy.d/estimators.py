"""Predictions beside the recorded outputs of the estimators that ship with Megatron-Bridge and Megatron-LM."""

import json
from pathlib import Path
from typing import Any

from page import Page, signed, table
from published import on_te

from harness.experiment.experiment import ExperimentSpec
from harness.launch.environment import Host
from harness.launch.machine import software_for
from harness.measure.prediction import predict_with, tracing
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve

# Recipes of this repository by the names in the recorded cases, and whose operating point is borrowed; all pretrain.
MODELS = {"llama3_8b": None, "llama3_70b": None, "llama31_405b": None, "mixtral_8x7b": "a100", "qwen3_235b_a22b": None}


def page(source: Path, host: Host) -> Page:
    """Compare with the closed formulas, part by part. No row was measured."""
    read = json.loads(source.read_text())
    software, _ = software_for("h100", host)
    rows = []
    for case in read["cases"]:
        spec = spec_of(case)
        made = predict_with(tracing(host), spec, software) if spec else None
        if made is None or made.prediction is None:
            continue
        fullest = max(made.prediction.stages, key=lambda stage: stage.total)
        rows.append({
            "model": case["model"], "seq_length": case["seq"], "num_gpus": case["gpus"],
            "layout": f"TP{case['tp']} PP{case['pp']} VP{case['vp'] or 1} CP{case['cp']} EP{case['ep']}",
            "predicted_bytes": fullest.total,
            "predicted_activation_bytes": fullest.activations + fullest.logits + fullest.transient,
            "bridge_bytes": case["bridge"]["total_bytes"], "bridge_activation_bytes": case["bridge"]["activation_bytes"],
            "megatron_lm_bytes": case["megatron_lm"]["weight_and_optimizer_bytes"]
            + case["megatron_lm"]["activation_bytes_sp_selective"],
        })  # fmt: skip
    left_out = [case["model"] for case in read["cases"] if spec_of(case) is None]
    headline = (
        f"{len(rows)} requests; no recipe here for {', '.join(left_out) or 'none of them'}. None of it is measured."
    )
    return Page(
        "Predictions beside those of other estimators", headline,
        {"source": read["source"], "rows": rows, "left_out": left_out}, _table(rows), [f"Source: {read['source']}."],
    )  # fmt: skip


def spec_of(case: dict[str, Any]) -> ExperimentSpec | None:
    """Return the request that was recorded, with core attention recomputed, which is all that the formulas know."""
    if case["model"] not in MODELS:
        return None
    request = Request(
        model_recipe_name=case["model"], gpu="h100", point_gpu=MODELS[case["model"]], task="pretrain", compute_dtype="bf16",
        num_gpus=case["gpus"], seq_length=case["seq"], micro_batch_size=case["mbs"],
        global_batch_size=case["mbs"] * case["dp"] * case["num_microbatches"],
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"],
        virtual_pipeline_model_parallel_size=case["vp"] or "none", context_parallel_size=case["cp"],
        expert_model_parallel_size=case["ep"], expert_tensor_parallel_size=case["etp"], recompute="core_attn",
        set_values=(f"parallelism.sequence_parallel={str(case['sequence_parallel']).lower()}",
                    "ddp.grad_reduce_in_fp32=true", "cuda_graph.impl=none", "cuda_graph.scope=[]"),
    )  # fmt: skip
    return on_te(resolve(request).spec)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    cells = []
    for row in rows:
        ours, theirs = row["predicted_activation_bytes"], row["bridge_activation_bytes"]
        sizes = (row["predicted_bytes"], row["bridge_bytes"], row["megatron_lm_bytes"], ours, theirs)
        gigabytes = (f"{size / 1e9:.1f}" for size in sizes)
        cells.append((row["model"], row["num_gpus"], row["layout"], *gigabytes, signed(theirs / ours - 1)))
    figures = "predicted GB: | Bridge GB: | Megatron-LM GB: | activations GB: | Bridge's: | :"
    return table(f"model | GPUs: | layout | {figures}", cells)
