"""Compares predicted with published seconds. Ratios between settings are more reliable than seconds and come first."""

import json
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from statistics import mean

import times_page
from korthikanti import Row, made_of, of_layers, spec_of, whole
from page import Page, signed, table
from times_fit import Compared, Fit

from harness.launch.environment import Host
from harness.predict.time_model import step_time
from harness.predict.trace_book import AROUND

_BASELINE = "kor-t4-22B-baseline"


def page(paper: Path, sft: list[Row], measured: tuple[Fit, dict[str, str]], host: Host) -> Page:
    """Make the page. ``sft``: rows of the Llama3-70B page, whose throughput was predicted there. ``measured``: fit, rows left out."""
    rows = json.loads(paper.read_text())["rows"]
    layers = _layers([row for row in rows if row["id"].startswith("kor-t4")], host)
    models = _models([row for row in rows if row["id"].startswith("kor-t5")], host)
    layouts = layout_pairs(measured[0].compared)
    settings = _settings(sft)
    costs = [abs(row["cost_error"]) for row in (*layers, *models, *settings) if row["measured_cost"]]  # no control
    headline = (
        f"Cost of a setting against another: off by {mean(costs) * 100:.1f} points on average, {max(costs) * 100:.1f} points at worst. "
        f"{times_page.headline(measured[0])}"
    )
    document = {
        "layers": layers,
        "models": models,
        "settings": settings,
        "layouts": layouts,
        "fit": times_page.document(*measured),
    }
    return Page("Predicted and published times", headline, document, [
        "One layer of the 22B model on A100, TP 8 (table 4 of Korthikanti et al. 2022); cost against no recompute:", "",
        *_cost_table(layers, "ms", 1e3), "",
        "Whole models on A100 (table 5); cost of full recompute against core attention with sequence parallelism:", "",
        *_cost_table(models, "s", 1), "",
        "Llama3-70B SFT on 32 H100, FP8; cost against core_attn at the same layout:", "",
        *table("recompute | predicted cost: | published cost:", (
            (r["name"], signed(r["predicted_cost"]), signed(r["measured_cost"])) for r in settings
        )), "",
        f"A checkpoint takes the host as long as {AROUND:g} products, beside what it repeats. host.md has the measurement, and the costs of "
        "settings where the host is the limit.", "",
        *times_page.lines(*measured),
        "Layouts of one model, GPU, number of GPUs, precision and sequence; time of the first per sample over that of the second:", "",
        *table("first | second | predicted: | published: | error:", (
            (r["first"], r["second"], f"{r['predicted']:.2f}", f"{r['measured']:.2f}", signed(r["error"])) for r in layouts
        )),
    ])  # fmt: skip


def layout_pairs(rows: Iterable[Compared]) -> list[Row]:
    """Return every pair of published layouts of one kind, with the predicted and the measured ratio of their times per sample.

    A layout is what `plan --over` and `--search` vary. Of each layout the row with the largest batch counts: the others repeat its error.
    """
    largest: dict[object, Compared] = {}
    for row in sorted(times_page.published(rows), key=lambda row: row.step.spec.batch.global_batch_size):
        spec = row.step.spec
        largest[times_page.kind(row), spec.parallelism, spec.batch.micro_batch_size] = row
    every = (times_page.Pair(*both) for both in combinations(largest.values(), 2))
    return [
        {"first": pair.left.step.name, "second": pair.right.step.name, "predicted": 1 + pair.predicted,
         "measured": 1 + pair.measured, "error": (1 + pair.predicted) / (1 + pair.measured) - 1}
        for pair in every if times_page.kind(pair.left) == times_page.kind(pair.right)
    ]  # fmt: skip


def _layers(rows: list[Row], host: Host) -> list[Row]:
    found = of_layers(rows, host, lambda spec, costs: step_time(spec, costs).compute_s)
    seconds = {row["id"]: each for row, each in zip(rows, found, strict=True)}
    base = next(row for row in rows if row["id"] == _BASELINE)
    return [
        _cost_row(row["id"][len("kor-t4-22B-") :], seconds[row["id"]], row["step_s"],
                  (seconds[_BASELINE], base["step_s"]))
        for row in rows
    ]  # fmt: skip


def _models(rows: list[Row], host: Host) -> list[Row]:
    """Pair full recompute with core attention of each model, as the paper does."""
    made = made_of(map(spec_of, rows), host, whole)
    seconds = {row["id"]: each.time.likely_s for row, each in zip(rows, made, strict=True) if each.time}
    found = []
    for row in rows:
        control = row["id"].replace("-full", "-selSP")
        base = next(other for other in rows if other["id"] == control)
        times = (seconds[control], base["step_s"])
        found.append(_cost_row(row["id"][len("kor-t5-") :], seconds[row["id"]], row["step_s"], times))
    return found


def _cost_row(name: str, predicted_s: float, measured_s: float, base: tuple[float, float]) -> Row:
    predicted_cost, measured_cost = predicted_s / base[0] - 1, measured_s / base[1] - 1
    return {
        "name": name, "predicted_s": predicted_s, "measured_s": measured_s, "error": predicted_s / measured_s - 1,
        "predicted_cost": predicted_cost, "measured_cost": measured_cost, "cost_error": predicted_cost - measured_cost,
    }  # fmt: skip


def _settings(sft: list[Row]) -> list[Row]:
    """Return the throughput of one layout under several settings, the control first."""
    same = [row for row in sft if row["name"] == sft[0]["name"]]
    base = same[0]
    return [
        _cost_row(row["recompute"], 1 / row["predicted_tflops_per_gpu"], 1 / row["measured_tflops_per_gpu"],
                  (1 / base["predicted_tflops_per_gpu"], 1 / base["measured_tflops_per_gpu"]))
        for row in same[1:]
    ]  # fmt: skip


def _cost_table(rows: Iterable[Row], unit: str, scale: float) -> list[str]:
    heads = f"setting | predicted {unit}: | published {unit}: | error: | predicted cost: | published cost:"
    shares = ("error", "predicted_cost", "measured_cost")
    return table(heads, (
        (r["name"], *(f"{r[name] * scale:.2f}" for name in ("predicted_s", "measured_s")), *(signed(r[name]) for name in shares))
        for r in rows
    ))  # fmt: skip
