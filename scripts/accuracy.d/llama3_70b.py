"""Compares Megatron-Bridge's published Llama3-70B table with predictions of the shipped recipe."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from page import Page, plain, sections, signed, table
from published import on_te, predicted

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.flops import achieved_tflops
from harness.experiment.recompute import parse_recompute
from harness.experiment.rules.check import check
from harness.experiment.software import Software
from harness.launch.environment import Host
from harness.launch.machine import software_for
from harness.predict.device import device_needs
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
    "two rows are of runs that ended out of memory on 80 GB while they read 58.8 and 59.6 GB: what filled the GPU is not what was read",
    "core_attn and core_attn,layernorm run the same kernels, so their 0.8 GB apart is the noise of the table",
    "rows with a rule's name break it: megatron-core cannot capture an MLP with a checkpoint in this software. What these runs captured is "
    "not known; ranges count them all the same",
    "upstream now calls the table historical",
)


_TAKEN = (
    "The table that mbr-perf grew from names a peak of 58.8 GB for a job that ran out of memory on 80 GB; the cure was "
    "`expandable_segments:True`. A peak of 58.8 GB does not fill the device. GB that torch's allocator reserves, predicted for the "
    "fullest rank; usable: what an H100 has beside CUDA's context and NCCL. Eager rows are replayed request by request, rows under CUDA graphs are estimated by the ratios of their class.",
)


def _explained(rows: list[dict[str, Any]]) -> list[str]:
    """Return what the rows of the first layout explain of the table, and what they do not. Figures in GB."""
    core, mlp = (next(row for row in rows if row["recompute"] == name) for name in ("core_attn", "mlp"))

    def gb(row: dict[str, Any], how: str, what: str = "reserved_bytes") -> float:
        return float(row["taken"][how][what]) / 1e9

    replayed, measured = (core[name] / 1e9 for name in ("predicted_bytes", "measured_bytes"))
    eager = gb(core, "eager native", "peak_bytes")
    missing = core["usable_bytes"] / 1e9 - gb(core, "graphs native")
    return [
        "What the prediction explains:",
        "",
        f"- the top of a replayed step is the {core['peak']}: {core['transient_bytes'] / 1e9:.1f} GB of gradients copied to fp32 and of weights that are "
        f"cast together before they are quantised. No recompute changes it, so all four settings replay the same {replayed:.1f} GB",
        f"- before replayed steps come eager steps and the capture. There `core_attn` "
        f"reserves {gb(core, 'graphs expandable') - gb(mlp, 'graphs expandable'):.1f} GB more than `mlp`: the rows that read "
        "58.8 and 59.6 GB ended out of memory, those that read 55.6 GB did not",
        f"- with torch's default, the eager steps of `core_attn` reserve {gb(core, 'eager native'):.1f} GB for {eager:.1f} GB of tensors; "
        f"expandable segments need {gb(core, 'eager expandable'):.1f} GB. megatron-core empties the cache before it captures, so these bytes "
        "do not add to those of the capture",
        "",
        f"What it does not explain: `mlp` reads {(mlp['predicted_bytes'] - mlp['measured_bytes']) / 1e9:.1f} GB less than the optimizer's step needs "
        f"with any setting, and {gb(mlp, 'eager native', 'peak_bytes') - mlp['measured_bytes'] / 1e9:.1f} GB less than without graphs. So these two runs had "
        f"less in that step, or the table read them elsewhere. The likely value of `core_attn` with torch's default is {abs(missing):.1f} GB "
        f"{'below' if missing >= 0 else 'above'} the usable memory. The predicted gain of expandable segments under CUDA graphs is an estimate. "
        "Nothing here is fitted to this table.",
        "",
        f"The table does not say when it read its peaks. Eager steps would hold {eager - measured:.1f} GB more than it says ({eager:.1f} GB), so "
        f"mbr-perf takes them for those of replayed steps, an error of {signed(replayed / measured - 1)}. Its own goldens hold "
        "counters of the whole run, and are compared with the peak of the whole run. A log that prints the eager peak of this job would decide.",
        "",
        "The same answer for one setting: `mbr-perf plan -mr llama3_70b --task sft -g h100 -c fp8_cs -ng 32 -gb 32 --only core_attn mlp "
        "--cuda_graph_impl none -E PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False`.",
    ]


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
    title = "Predicted and published peaks: Llama3-70B SFT on 32 H100"
    reasons = sections({"What ran out of memory": [*_TAKEN, "", *taken(rows), "", *_explained(rows)]})
    details = [f"Source: {about}", "", *(f"- {text}" for text in CAVEATS), "", *reasons]
    return Page(title, headline, {"source": about, "rows": rows}, peaks(rows), details)


def compare(path: Path, host: Host) -> list[dict[str, Any]]:
    """Return a row per published row. The runs had CUDA graphs over the MLP."""
    software, _ = software_for("h100", host)
    rows = []
    for row in json.loads(path.read_text())["rows"]:
        spec = _spec(row)
        made = predicted(spec, software, host)
        peak, measured = made.peak_bytes, row["peak_gb"] * 1e9
        (low, high), seconds = made.range_bytes, made.step_time_s
        top = max(made.stages, key=lambda stage: stage.total)
        rows.append({
            "name": row["name"], "recompute": row["recompute"], "note": row["note"],
            "refused_by": [each.id for each in check(spec, software) if each.severity == "error"],
            "peak": top.peak, "transient_bytes": top.transient,
            "class": class_of(spec, peak).name, "architecture": "80 x 8192, 64 heads", "uneven_bytes": peak,
            "predicted_bytes": peak, "measured_bytes": measured, "error": round(peak / measured - 1, 5),
            "in_range": low <= measured <= high, "range_bytes": [low, high],
            "predicted_tflops_per_gpu": achieved_tflops(made.model_flops, seconds, spec.num_gpus) if seconds else None,
            "measured_tflops_per_gpu": row["tflops_per_gpu"],
            "usable_bytes": (spec.gpu_type.usable_bytes or 0) - device_needs(spec).outside_bytes,
            "taken": {name: _taken(each, software, host) for name, each in _variants(spec).items()},
        })  # fmt: skip
    return rows


def _variants(spec: ExperimentSpec) -> dict[str, ExperimentSpec]:
    """Return the job with and without CUDA graphs, with expandable segments and with torch's default."""
    eager = spec.model_copy(update={"cuda_graph": spec.cuda_graph.model_copy(update={"impl": "none", "scope": ()})})
    return {
        f"{how} {name}": each.model_copy(update={"env": {**each.env, "PYTORCH_CUDA_ALLOC_CONF": text}})
        for how, each in (("graphs", spec), ("eager", eager))
        for name, text in (("expandable", "expandable_segments:True"), ("native", "expandable_segments:False"))
    }


def _taken(spec: ExperimentSpec, software: Software, host: Host) -> dict[str, Any]:
    found = predicted(spec, software, host)
    names = ("peak_bytes", "reserved_bytes", "reserved_range_bytes", "fits_bytes", "reserved_source")
    return {name: getattr(found, name) for name in names}


def taken(rows: list[dict[str, Any]]) -> list[str]:
    """Return what torch's allocator takes of the device, in GB."""
    heads = "graphs, expandable: | graphs, native: | eager peak: | eager, expandable: | eager, native: | usable: | published: | "
    cells = [("graphs expandable", "reserved"), ("graphs native", "reserved"), ("eager native", "peak"),
             ("eager expandable", "reserved"), ("eager native", "reserved")]  # fmt: skip
    return table(f"layout | recompute | {heads}", (
        (row["name"], row["recompute"], *(f"{row['taken'][name][what + '_bytes'] / 1e9:.1f}" for name, what in cells),
         f"{row['usable_bytes'] / 1e9:.1f}", f"{row['measured_bytes'] / 1e9:.1f}", row["note"])
        for row in rows
    ))  # fmt: skip


def _spec(row: dict[str, Any]) -> ExperimentSpec:
    spec = on_te(resolve(replace(POINT, **row["options"])).spec)
    return spec.model_copy(update={"recompute": parse_recompute(row["recompute"])})


def peaks(rows: list[dict[str, Any]]) -> list[str]:
    """Return the peaks, and the cost of each setting relative to the first row, which is more reliable than seconds."""
    sizes, rates = (("predicted" + unit, "measured" + unit) for unit in ("_bytes", "_tflops_per_gpu"))
    heads = "predicted GB: | measured GB: | error: | in range | cost predicted: | cost measured: | "
    return table(f"layout | recompute | {heads}", (
        (row["name"], row["recompute"], *(f"{row[size] / 1e9:.1f}" for size in sizes), signed(row["error"]),
         "yes" if row["in_range"] else "no",
         *(signed(base / value - 1) if (base := rows[0][rate]) and (value := row[rate]) else "-" for rate in rates),
         ", ".join([row["note"], *row["refused_by"]]))
        for row in rows
    ))  # fmt: skip
