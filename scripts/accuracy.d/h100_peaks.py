"""Draws the picture of the README: predicted against published H100 peaks, from the figures that comparisons have kept."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from harness.records.store import write_atomically
from harness.show.charts import drawing as look
from harness.show.charts.drawing import Row
from harness.show.page import Picture
from harness.units import GIB

NAME = "h100_peaks"
SOURCES = ("megatron_lm", "other_published", "llama3_70b_sft")
# Kinds as in the table of the README, each with its colour and shape.
DENSE, EXPERTS, BOUNDED = "dense models", "models with experts", "under CUDA graphs or FSDP"
_LOOKS = {DENSE: (look.BLUE, "circle"), EXPERTS: (look.GREEN, "square"), BOUNDED: (look.VERMILION, "triangle-up")}
_SIDE, _MOST_GIB = 360, 100.0
_TICKS = [0.5, 1, 2, 5, 10, 20, 50, 100]


def rows(folder: Path) -> list[Row]:
    """Return a row per H100 case of the comparisons kept in ``folder``: peaks and ranges in GiB, errors in per cent."""
    documents = (json.loads((folder / f"{name}.json").read_text()) for name in SOURCES)
    return [_row(case) for document in documents for case in _cases(document) if case["gpu"] == "h100"]


def _cases(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the cases. The Llama 3 70B SFT table has a row per run; all ran on H100, under CUDA graphs."""
    common = {"gpu": "h100", "model": "dense", "bounded": True}
    return document.get("cases") or [row | common | {"runs": [row["name"]]} for row in document["rows"]]


def _row(case: Mapping[str, Any]) -> Row:
    published, (low, high) = case["measured_bytes"], case["range_bytes"]
    sizes = {"predicted": case["predicted_bytes"], "low": low, "high": high}
    return {
        "kind": BOUNDED if case["bounded"] else DENSE if case["model"] == "dense" else EXPERTS,
        "runs": len(case["runs"]), "in_range": case["in_range"], "published": published / GIB,
        **{name: size / GIB for name, size in sizes.items()},
        **{f"{name}_error": (size / published - 1) * 100 for name, size in sizes.items()},
    }  # fmt: skip


def picture(found: Sequence[Row]) -> Picture:
    """Draw the peaks with the line of equality at the left, the errors at the right, both with predicted ranges."""
    num_runs, num_inside = (sum(int(row[name] or 0) for row in found) for name in ("runs", "in_range"))
    least = min(float(row["published"] or 0) for row in found) / 1.2
    equal: list[Row] = [{"published": size, "predicted": size, "predicted_error": 0.0} for size in (least, _MOST_GIB)]
    sizes = alt.Scale(type="log", domain=[least, _MOST_GIB], nice=False)
    left = _panel(
        found, equal, "predicted", "low", "high", ("Predicted peak (GiB)", sizes, alt.Axis(values=_TICKS)), sizes
    )
    shares = ("Error of the prediction (%)", alt.Scale(zero=True), alt.Axis(format="+d"))
    right = _panel(found, equal, "predicted_error", "low_error", "high_error", shares, sizes)
    title = f"Peak memory on H100: predicted without a GPU, and published ({len(found)} cases, {num_runs} runs)"
    subtitle = [
        "Published by Megatron-LM (functional and memory tests) and Megatron-Bridge (Llama 3 70B SFT); figures: results/accuracy",
        f"Dashed line: prediction = published peak. Vertical bar: predicted range, which holds {num_inside} of {len(found)} published peaks",
    ]
    return look.picture(NAME, title, subtitle, alt.hconcat(left, right, spacing=30), "")


def _panel(
    found: Sequence[Row], equal: Sequence[Row], value: str, low: str, high: str,
    vertical: tuple[str, alt.Scale, alt.Axis], sizes: alt.Scale,
) -> "look.Chart":  # fmt: skip
    title, scale, ticks = vertical
    x = alt.X("published:Q", title="Published peak (GiB)", scale=sizes, axis=alt.Axis(values=_TICKS))
    y = alt.Y(f"{value}:Q", title=title, scale=scale, axis=ticks)
    legend = alt.Legend(orient="top", offset=4)
    colour = look.kinds(alt.Color, "kind", {kind: color for kind, (color, _) in _LOOKS.items()}, legend=legend)
    shape = look.kinds(alt.Shape, "kind", {kind: shape for kind, (_, shape) in _LOOKS.items()}, legend=legend)
    line = look.frame(equal).mark_line(color=look.GREY, strokeDash=[5, 4]).encode(x=x, y=y)
    cases = look.frame(found)
    bars = cases.mark_rule(opacity=0.45).encode(
        x=x, y=alt.Y(f"{low}:Q", title=title, scale=scale), y2=high, color=colour
    )
    points = cases.mark_point(filled=True, size=55, opacity=0.8).encode(x=x, y=y, color=colour, shape=shape)
    return alt.layer(line, bars, points).properties(width=_SIDE, height=_SIDE)


def write(accuracy: Path, folder: Path) -> tuple[Path, ...]:
    """Draw the figures kept in ``accuracy`` as SVG and PNG into ``folder``."""
    drawn = picture(rows(accuracy)).vega_lite or ""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {".svg": look.svg(drawn).encode() + b"\n", ".png": look.png(drawn)}
    paths = {folder / f"{NAME}{suffix}": content for suffix, content in contents.items()}
    for path, content in paths.items():
        write_atomically(path, content)
    return tuple(paths)
