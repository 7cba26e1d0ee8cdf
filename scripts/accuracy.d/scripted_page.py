"""Predicted peaks beside what torch's CUDA allocator held on scripted GPUs: the page of results/scripted_gpu."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from page import Page, plain, signed, table

# A difference above both is large, and the page names its cause.
_SHARE, _BYTES = 0.002, 100 << 20


def page(folder: Path) -> Page:
    """Compare every row kept in ``folder``."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    every = [row for file in files for row in file["rows"]]
    rows = [row for row in every if row["peak_allocated_bytes"]]
    sizes = [abs(error(row)) for row in rows]
    large = [row for row in rows if is_large(row)]
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
        [*_graphs([row for row in rows if row.get("peak_capture_bytes")]), "## Large differences", "", *_causes(large, rows), "", *_table("All rows", rows),
         *(["", "## Ranks that did not run", "", *failed] if failed else [])],
    )  # fmt: skip


_NOTES = (
    "Every row is one rank of a job in one process on a scripted GPU: torch's allocator, megatron-core and transformer-engine are "
    "real; kernels do nothing and nothing is sent, so what kernels allocate as scratch memory, and NCCL and cuDNN outside of torch, "
    "is not in it. Two micro-batches per pipeline stage; routing to experts is even; the stages are the first, the last "
    "and the one predicted fullest. Apex is missing, and the prediction is for a machine without it.",
)


_TWO_HEADS = "multi-token prediction without Apex: two weight gradients of the output layer wait for each other"
_ROUTING = "experts: the trace counts a routing map of 2.5 MiB per micro-batch and layer; the dispatcher keeps its latest alone"
_GATE = "attention's output gate: Inductor saves it in bf16, the trace has eager's fp32 copy"
_GRAPHS = "optimizer step: the transposed copy of the largest FP8 weight, and hidden states that the interleaved schedule still holds"
_TWO_AT_ONCE = (
    "overlapped experts: 136 MiB come with a second micro-batch beside the first; one alone is predicted within 0.1 %"
)
_UNKNOWN = "not explained yet"


def cause(row: dict[str, Any], last: int) -> str:
    """Return why a large difference stands; ``last``: the point's last stage."""
    if row.get("peak_capture_bytes"):
        return _GRAPHS
    is_last, has_experts = row["stage"] == last, row["point"].startswith(("deepseek", "kimi", "qwen3_"))
    if row["point"] == "moonlight_16b_pretrain_bf16_16_library":
        return _TWO_AT_ONCE
    if error(row) < 0:
        return _TWO_HEADS if is_last and row["point"].startswith("deepseek") else _UNKNOWN
    if row["point"].startswith("qwen3_next"):
        return _GATE
    return _ROUTING if has_experts else _UNKNOWN


def error(row: dict[str, Any]) -> float:
    """Return by how much the prediction is too high, as a share of what was allocated."""
    return float(row["predicted_peak_bytes"] / row["peak_allocated_bytes"] - 1)


def is_large(row: dict[str, Any]) -> bool:
    """Return whether the difference needs a cause."""
    return abs(error(row)) > _SHARE and abs(row["predicted_peak_bytes"] - row["peak_allocated_bytes"]) > _BYTES


def _ratios(rows: Iterable[dict[str, Any]], name: str) -> str:
    found = [row[name] / row["peak_allocated_bytes"] for row in rows if row[name]]
    return f"{min(found):.3f} to {max(found):.3f}" if found else "not measured"


def _by_model(rows: Sequence[dict[str, Any]]) -> list[str]:
    points = {
        point: [row for row in rows if row["point"] == point] for point in dict.fromkeys(row["point"] for row in rows)
    }
    return table("point | rows: | worst: | left out", (
        (point, len(own), signed(max((error(row) for row in own), key=abs)), "; ".join(own[0]["left_out"]))
        for point, own in points.items()
    ))  # fmt: skip


def _graphs(rows: Sequence[dict[str, Any]]) -> list[str]:
    names = ("peak_eager", "peak_capture", "peak_allocated", "peak_reserved", "predicted_peak", "predicted_held")
    heads = "point | setting | stage: | eager: | capture: | replayed: | reserved: | predicted: | held:"
    return [
        "## CUDA graphs", "",
        "GiB. Eager steps come first, then the capture; the table above compares replayed steps. `held` is the predicted peak of the "
        "fullest stage with private pools beside it, or the eager steps or the capture if they are fuller.", "",
        *table(heads, ((*_of_row(row), *(_gib(row[f"{name}_bytes"]) for name in names)) for row in rows)), "",
    ]  # fmt: skip


def _causes(large: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> list[str]:
    last = {
        point: max(each["stage"] for each in rows if each["point"] == point)
        for point in {row["point"] for row in large}
    }
    return table("point | setting | stage: | allocated GiB: | predicted, MiB more: | : | cause", (
        (*_of_row(row), *_compared(row), cause(row, last[row["point"]])) for row in sorted(large, key=error)
    ))  # fmt: skip


def _table(title: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    names = ("peak_reserved_bytes", "peak_reserved_late_bytes")
    heads = "point | setting | stage: | allocated GiB: | predicted, MiB more: | : | reserved: | reserved, late:"
    return [f"## {title}", "", *table(heads, (
        (*_of_row(row), *_compared(row), *(f"{row[name] / row['peak_allocated_bytes']:.3f}" if row[name] else "-" for name in names))
        for row in rows
    ))]  # fmt: skip


def _of_row(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["point"], row["setting"], row["stage"]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f}"


def _compared(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return GiB allocated, MiB predicted beyond that, and the error."""
    more = (row["predicted_peak_bytes"] - row["peak_allocated_bytes"]) / 2**20
    return _gib(row["peak_allocated_bytes"]), f"{more:+.0f}", signed(error(row))
