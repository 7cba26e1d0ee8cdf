"""Reserved bytes composed and replayed beside what torch's allocator reserved on scripted GPUs: the page ``reserved``."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import scripted_points
import traces
from packing import without_small
from page import Page, plain, signed, table

from harness.experiment.effective import settled_implementation
from harness.experiment.recompute import parse_recompute
from harness.launch.environment import Host
from harness.predict import reserved
from harness.predict.allocator_settings import AllocatorSettings
from harness.predict.ledger import stage_memory
from harness.predict.ranges import class_of
from harness.predict.rank_parts import MissingEventsError, Read
from harness.predict.shipped_events import events_made_here
from harness.predict.stages import Composer
from harness.predict.tracer import Tracing, trace_cache
from harness.predict.weighing import event_cases
from harness.records.events import ChunkEvents
from harness.records.store import write_atomically
from harness.records.trace import TraceCase

_SETTINGS = {"expandable": AllocatorSettings(expandable_segments=True), "native": AllocatorSettings()}
# NVIDIA/Megatron-LM pull request 6429, 64 H100: with overlapped expert-parallel communication two streams keep blocks of
# their own, and 1.13 bytes are reserved for each of tensors.
_TWO_STREAMS = {"reserved": (1.04, 1.13, 1.13), "fits": (1.04, 1.13, 1.13), "late": 1.0, "rows": 1}


def page(host: Host) -> Page:
    """Compare every row of results/scripted_gpu, and keep the ratios of classes where the planner reads them."""
    rows = [*_rows(host)]
    compared = [row for row in rows if "expandable" in row]
    errors = [abs(_error(row)) for row in compared]
    classes = {name: _classed(compared, name) for name in sorted({row["class"] for row in compared})}
    content = {"classes": {**classes, "overlapped expert communication": dict.fromkeys(_SETTINGS, _TWO_STREAMS)}}
    write_atomically(reserved.DATA, json.dumps(content, indent=1) + "\n")
    return Page(
        "Reserved bytes and torch's CUDA allocator",
        f"{len(compared)} ranks: reserved bytes of composed and replayed steps differ from torch's allocator by "
        f"{plain(median(errors))} (median), {plain(max(errors))} (worst); "
        f"{sum(error <= 0.01 for error in errors)} by at most 1 %.",
        {"rows": rows},
        [*_NOTES, "", *_ratios(content["classes"])],
        [
            "## All rows",
            "",
            *_table(compared),
            "",
            "## Rows that are not composed",
            "",
            *(
                f"* {row['point']}, {row['setting']}, stage {row['stage']}: {row['problem']}"
                for row in rows
                if "problem" in row
            ),
        ],
    )


_NOTES = (
    "Measured: expandable segments, streams never late. A rank's build, two steps and its states are composed of recorded "
    "requests of single layers; nothing of the whole step is traced, and nothing is fitted. Fits: what the fullest moments "
    "need once cached segments are given back.",
)


def _rows(host: Host) -> Iterator[dict[str, Any]]:
    sys.path.append(str(Path(__file__).parents[2]))
    for point in scripted_points.points(host, []):
        measured = [row for row in scripted_points.read(point.name).values() if row["peak_reserved_bytes"]]
        read = _reader(point, host) if measured else None
        for setting in dict.fromkeys(row["setting"] for row in measured):
            own = [row for row in measured if row["setting"] == setting]
            assert read
            yield from _of_setting(point, setting, own, host, read)


def _reader(point: scripted_points.Point, host: Host) -> Read:
    implementation = settled_implementation(point.spec)
    due = {case.key: (implementation, case) for case in event_cases(point.spec, implementation)}
    found = {case.key: chunk for case, chunk in traces.recorded(events_made_here(), host, due)}

    def read(case: TraceCase) -> ChunkEvents | None:
        return without_small(found[case.key]) if case.key in found else None

    return read


def _of_setting(
    point: scripted_points.Point, setting: str, rows: list[dict[str, Any]], host: Host, read: Read
) -> Iterator[dict[str, Any]]:
    spec = point.spec.model_copy(update={"recompute": parse_recompute(setting)})
    composer = replace(Composer(spec, settled_implementation(spec)), apex=False)
    costs = composer.chunk_costs(
        Tracing(host, trace_cache(host.shell)).traces(composer.cases(), composer.implementation).even
    )
    for row in rows:
        stage = stage_memory(spec, row["stage"], costs[row["stage"]])
        found: dict[str, Any] = {"class": class_of(spec, stage.total).name, "predicted_peak_bytes": stage.total}
        try:
            for how, settings in _SETTINGS.items():
                held = reserved.replay(composer, stage, costs[row["stage"]], settings, read)
                found[how] = {"reserved_bytes": held.reserved[1], "fits_bytes": held.fits[1]}
        except MissingEventsError as error:
            found["problem"] = str(error)
        names = ("point", "setting", "stage", "peak_allocated_bytes", "peak_reserved_bytes", "peak_reserved_late_bytes")
        yield {name: row[name] for name in names} | found


def _error(row: dict[str, Any]) -> float:
    return float(row["expandable"]["reserved_bytes"] / row["peak_reserved_bytes"] - 1)


def _classed(rows: Sequence[dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    own = [row for row in rows if row["class"] == name]
    late = [
        row["peak_reserved_late_bytes"] / row["peak_reserved_bytes"] for row in own if row["peak_reserved_late_bytes"]
    ]

    def shares(how: str, what: str) -> tuple[float, float, float]:
        measured = how == "expandable" and what == "reserved"
        of_rows = sorted(
            (row["peak_reserved_bytes"] if measured else row[how][f"{what}_bytes"]) / row["predicted_peak_bytes"]
            for row in own
        )
        ends = (of_rows[round((len(of_rows) - 1) * part)] for part in (0.05, 0.5, 0.95))
        low, likely, high = (round(end, 4) for end in ends)
        return low, likely, high

    return {
        how: {what: shares(how, what) for what in ("reserved", "fits")}
        | {"late": round(max(1.0, sorted(late)[round((len(late) - 1) * 0.9)]), 4), "rows": len(own)}
        for how in _SETTINGS
    }


def _ratios(classes: dict[str, Any]) -> list[str]:
    rows = [(name, how, row) for name, settings in classes.items() for how, row in settings.items()]
    found = table("class | allocator | reserved / peak | fits / peak | late: | rows:", (
        (name, how, *(" ".join(f"{end:.3f}" for end in row[what]) for what in ("reserved", "fits")), f"{row['late']:.3f}", row["rows"])
        for name, how, row in rows
    ))  # fmt: skip
    return [*found, "", "Three figures: below them lie 5, 50 and 95 of 100 rows. Late: side streams always behind."]


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for row in rows:
        sizes = (row["peak_allocated_bytes"], row["peak_reserved_bytes"], row["expandable"]["reserved_bytes"],
                 row["expandable"]["fits_bytes"], *row["native"].values())  # fmt: skip
        shown = [f"{size / 2**30:.2f}" for size in sizes]
        cells.append((row["point"], row["setting"], row["stage"], *shown[:3], signed(_error(row)), *shown[3:]))
    heads = "point | setting | stage: | allocated GiB: | reserved: | predicted: | : | fits: | native reserved: | native fits:"
    return table(heads, cells)
