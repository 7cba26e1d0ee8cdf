"""Predicted peaks beside what torch's CUDA allocator held on scripted GPUs: the page of results/scripted_gpu."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from page import Page, gib, plain, sections, signed, table

from harness.experiment.recompute_plan import PLAN
from harness.units import grouped

# A difference above both is large, and the page names its cause.
_SHARE, _BYTES = 0.002, 100 << 20


def page(folder: Path) -> Page:
    """Compare every row in ``folder``."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    every = [row for file in files for row in file["rows"]]
    rows = [row for row in every if row["peak_allocated_bytes"]]
    sizes = [abs(error(row)) for row in rows]
    more = (abs(row["predicted_peak_bytes"] - row["peak_allocated_bytes"]) for row in rows)
    large = [
        row for row, size, num_bytes in zip(rows, sizes, more, strict=True) if size > _SHARE and num_bytes > _BYTES
    ]
    headline = (
        f"{len(rows)} ranks of {len({row['point'] for row in rows})} H100 points: predicted peaks differ from torch's allocator by "
        f"{plain(median(sizes))} (median), {plain(max(sizes))} (worst); {len(rows) - len(large)} differ by less than "
        f"{_BYTES >> 20} MiB or {_SHARE:.1%}. Reserved is {_ratios(rows, 'peak_reserved_bytes')} of allocated, "
        f"{_ratios(rows, 'peak_reserved_late_bytes')} where side streams are always behind."
    )
    failed = [
        f"* {row['point']}, {row['setting']}, stage {row['stage']}: {row['failure']}" for row in every if row["failure"]
    ]
    return Page(
        "Predicted peaks and torch's CUDA allocator", headline, {"rows": every},
        [*_NOTES, "", *_by_model(rows)],
        sections({
            "CUDA graphs": _graphs([row for row in rows if row.get("peak_capture_bytes")]),
            "Large differences": _causes(large), "All rows": _table(rows), **({"Ranks that did not run": failed} if failed else {}),
        }),
    )  # fmt: skip


_NOTES = (
    "Every row is one rank of a job. It runs alone in one process on a "
    "[scripted GPU](../../tests/README.md#scripted-gpus): torch's allocator, megatron-core and transformer-engine are real, "
    "kernels do nothing, and ranks send nothing. The figures therefore lack the scratch memory of kernels and what NCCL and "
    "cuDNN allocate outside torch.",
    "",
    "Jobs have two micro-batches per pipeline stage, and routing to experts is even. The stages are the first, the last and "
    "the one with the highest prediction; of a plan by layer all. Apex is missing, and predictions are for a machine without it.",
)


_GATE = "attention's output gate: Inductor saves it in bf16, the trace has eager's fp32 copy"
_STEP = (
    "optimizer step: transformer-engine scales its largest moment, or the transposed copy of an FP8 weight, in a tensor "
    "of its own, and the schedule still holds hidden states"
)
_AT_ONCE = "overlapped experts: gradients of the dispatched tokens of another micro-batch are alive in a forward pass"
_FIRST = (
    "first chunk: the trace of a dense layer with `mla_up_proj` holds 220 MiB more in its backward pass, and the plan adds "
    "the sums of the embedding's gradient to it, which come after"
)
_UNKNOWN = "not explained yet"


def cause(row: dict[str, Any]) -> str:
    """Return why a large difference stands; found in a snapshot of the rank for a row of each kind."""
    if row["point"].startswith("qwen3_next"):
        return _GATE
    if row["point"].startswith("deepseek") and error(row) > 0 and row["stage"] == 0 and "mla_up_proj" in row["setting"]:
        return _FIRST
    if error(row) > 0:
        return _UNKNOWN
    if row["point"].startswith(("qwen3_235b_a22b_pretrain_fp8", "moonlight")):
        return _AT_ONCE
    is_seen = row["point"].startswith("deepseek") or row.get("peak_capture_bytes")
    return _STEP if is_seen else _UNKNOWN


def error(row: dict[str, Any]) -> float:
    """Return by how much the prediction is too high, as a share of what was allocated."""
    return float(row["predicted_peak_bytes"] / row["peak_allocated_bytes"] - 1)


def _ratios(rows: Iterable[dict[str, Any]], name: str) -> str:
    found = [row[name] / row["peak_allocated_bytes"] for row in rows if row[name]]
    return f"{min(found):.3f} to {max(found):.3f}" if found else "not measured"


def _by_model(rows: Sequence[dict[str, Any]]) -> list[str]:
    points = grouped((row["point"], row) for row in rows)
    return table("point | rows: | worst: | left out", (
        (point, len(own), signed(max((error(row) for row in own), key=abs)), "; ".join(own[0]["left_out"]))
        for point, own in points.items()
    ))  # fmt: skip


def _graphs(rows: Sequence[dict[str, Any]]) -> list[str]:
    names = ("peak_eager", "peak_capture", "peak_allocated", "peak_reserved", "predicted_peak", "predicted_held")
    heads = "point | setting | stage: | eager: | capture: | replayed: | reserved: | predicted: | held:"
    return [
        "In GiB. Eager steps run first, then the capture, then replayed steps; the table above compares replayed steps. `held` is "
        "the prediction for the fullest stage: its peak with private pools, the eager steps or the capture, whichever is more.", "",
        *table(heads, ((*_of_row(row), *gib(*(row[f"{name}_bytes"] for name in names))) for row in rows)),
    ]  # fmt: skip


def _causes(large: Sequence[dict[str, Any]]) -> list[str]:
    return table("point | setting | stage: | allocated GiB: | predicted, MiB more: | : | cause", (
        (*_of_row(row), *_compared(row), cause(row)) for row in sorted(large, key=error)
    ))  # fmt: skip


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    names = ("peak_reserved_bytes", "peak_reserved_late_bytes")
    heads = "point | setting | stage: | allocated GiB: | predicted, MiB more: | : | reserved: | reserved, late:"
    return table(heads, (
        (*_of_row(row), *_compared(row), *(f"{row[name] / row['peak_allocated_bytes']:.3f}" if row[name] else "-" for name in names))
        for row in rows
    ))  # fmt: skip


def _of_row(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["point"], "a plan by layer" if row["setting"].startswith(PLAN) else row["setting"], row["stage"]


def _compared(row: dict[str, Any]) -> tuple[str, ...]:
    """Return GiB allocated, MiB predicted beyond that, and the error."""
    more = (row["predicted_peak_bytes"] - row["peak_allocated_bytes"]) / 2**20
    return *gib(row["peak_allocated_bytes"]), f"{more:+.0f}", signed(error(row))
