"""Compares Megatron-Bridge's published Llama3-70B table with predictions of the shipped recipe."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from page import Page, plain, signed, table

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import parse_recompute
from harness.launch.environment import Host
from harness.launch.machine import software_for
from harness.measure.prediction import predict
from harness.predict.flops import achieved_tflops
from harness.predict.ranges import class_of
from harness.resolve.recipe import Request
from harness.resolve.resolve import resolve

POINT = Request(
    model_recipe_name="llama3_70b", gpu="h100", task="sft", compute_dtype="fp8_cs", num_gpus=32, global_batch_size=32
)


# Facts that a reader needs to judge these rows.
CAVEATS = (
    "the runs captured the MLP in transformer-engine's CUDA graphs. What it saves lies in private pools, which torch does not count as "
    "allocated after the capture; the device holds it. The TP 8 row does not fit that",
    "two rows are of runs that ended out of memory on 80 GB, one of them without expandable segments, while they read 58.8 and "
    "59.6 GB: what filled the GPU is not what was read",
    "core_attn and core_attn,layernorm run the same kernels, so their 0.8 GB apart is the noise of the table",
    "upstream now calls the table historical",
)


def page(source: Path, host: Host) -> Page:
    """Return every row of the table, and why some are off."""
    rows = compare(source, host)
    errors = [row["error"] for row in rows]
    in_range = sum(row["in_range"] for row in rows)
    headline = (
        f"{len(rows)} rows under CUDA graphs: mean size {plain(mean(map(abs, errors)))}, worst {signed(max(errors, key=abs))}; "
        f"{in_range} of {len(rows)} inside the range."
    )
    about = json.loads(source.read_text())["source"]
    notes = [f"- {text}" for text in CAVEATS]
    title = "Predicted and published peaks: Llama3-70B SFT on 32 H100"
    return Page(title, headline, {"source": about, "rows": rows}, peaks(rows), [f"Source: {about}", "", *notes])


def compare(path: Path, host: Host) -> list[dict[str, Any]]:
    """Return a row per published row. The runs had CUDA graphs over the MLP."""
    software, _ = software_for("h100", host)
    rows = []
    for row in json.loads(path.read_text())["rows"]:
        spec = _spec(row)
        made = predict(spec, software, host)
        if made.prediction is None:
            raise RuntimeError(f"{row['name']} {row['recompute']}: {made.reason}")
        predicted, measured = made.prediction.peak_bytes, row["peak_gb"] * 1e9
        (low, high), seconds = made.prediction.range_bytes, made.prediction.step_time_s
        rows.append(
            {
                "name": row["name"], "recompute": row["recompute"], "note": row["note"],
                "class": class_of(spec, predicted).name, "architecture": "80 x 8192, 64 heads", "uneven_bytes": predicted,
                "predicted_bytes": predicted, "measured_bytes": measured, "error": round(predicted / measured - 1, 5),
                "in_range": low <= measured <= high, "range_bytes": [low, high],
                "predicted_tflops_per_gpu": achieved_tflops(made.prediction.model_flops, seconds, spec.num_gpus) if seconds else None,
                "measured_tflops_per_gpu": row["tflops_per_gpu"],
            }
        )  # fmt: skip
    return rows


def _spec(row: dict[str, Any]) -> ExperimentSpec:
    spec = resolve(replace(POINT, **row["options"])).spec
    kernels = spec.kernels.model_copy(update={"transformer_impl": "transformer_engine"})
    return spec.model_copy(update={"recompute": parse_recompute(row["recompute"]), "kernels": kernels})


def peaks(rows: list[dict[str, Any]]) -> list[str]:
    """Return the peaks, and the cost of each setting relative to the first row, which is more reliable than seconds."""
    sizes, rates = (("predicted" + unit, "measured" + unit) for unit in ("_bytes", "_tflops_per_gpu"))
    heads = "predicted GB: | measured GB: | error: | in range | cost predicted: | cost measured: | "
    return table(f"layout | recompute | {heads}", (
        (row["name"], row["recompute"], *(f"{row[size] / 1e9:.1f}" for size in sizes), signed(row["error"]),
         "yes" if row["in_range"] else "no", *(_cost(rows[0][rate], row[rate]) for rate in rates), row["note"])
        for row in rows
    ))  # fmt: skip


def _cost(base: float | None, value: float | None) -> str:
    return f"{(base / value - 1) * 100:+.1f} %" if base and value else "-"
