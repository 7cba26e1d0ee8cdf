"""Draws the picture of the README: predicted against published H100 peaks, from the figures that comparisons have kept."""

import json
from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from typing import Any

from harness.records.store import write_atomically
from harness.show import chart as look
from harness.show.chart import Axis, Limit, Plane, Point
from harness.show.page import Picture
from harness.show.svg import svg_file
from harness.units import GIB

NAME = "h100_peaks"
SOURCES = ("megatron_lm", "other_published", "llama3_70b_sft")
# Kinds as in the table of the README, each with its colour and shape.
DENSE, EXPERTS, BOUNDED = "dense models", "models with experts", "under CUDA graphs or FSDP"
_LOOKS = {DENSE: (look.BLUE, "circle"), EXPERTS: (look.GREEN, "square"), BOUNDED: (look.VERMILION, "triangle")}
_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)
Row = dict[str, Any]


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
    """Draw the error of every prediction by the published peak, with the predicted ranges."""
    num_runs, num_inside = (sum(row[name] for row in found) for name in ("runs", "in_range"))
    points = tuple(
        Point(
            log2(row["published"]), row["predicted_error"], row["kind"], upwards=(row["low_error"], row["high_error"]),
            note="{kind}: published {published:.5g} GiB, predicted {predicted:.5g} GiB, {predicted_error:+.1f} %".format(**row),
        )
        for row in sorted(found, key=lambda row: -list(_LOOKS).index(row["kind"]))
    )  # fmt: skip
    x = Axis("Published peak (GiB)", {log2(size): f"{size:g}" for size in _TICKS})
    chart = Plane(
        x, Axis("Error of the prediction (%)"), _LOOKS, points, upwards=(Limit(0, "prediction = published peak"),)
    )
    title = f"Peak memory on H100, predicted without a GPU ({len(found)} cases, {num_runs} runs)"
    caption = (
        "Published by Megatron-LM (functional and memory tests) and Megatron-Bridge (Llama 3 70B SFT). Figures: results/accuracy. "
        f"Vertical lines are predicted ranges, which hold {num_inside} of {len(found)} published peaks."
    )
    return Picture(NAME, title, caption, chart)


def write(accuracy: Path, folder: Path) -> Path:
    """Draw the figures kept in ``accuracy`` as SVG into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{NAME}.svg", svg_file(picture(rows(accuracy))))
    return folder / f"{NAME}.svg"
