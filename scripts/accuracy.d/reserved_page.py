"""Reserved bytes composed and replayed beside what torch's allocator reserved on scripted GPUs: the page ``reserved``."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

import scripted_points
import traces
from cases import event_cases
from packing import without_small
from page import Page, data_text, gib, plain, rows_of, sections, signed, table

from harness.experiment.effective import settled_implementation
from harness.experiment.recompute import parse_recompute
from harness.experiment.software import Software
from harness.launch.environment import Host
from harness.launch.machine import installed_software
from harness.predict import rank_events, reserved
from harness.predict.allocator_replay import replayed
from harness.predict.allocator_settings import AllocatorSettings
from harness.predict.compose import ChunkCost
from harness.predict.draws import read_varied
from harness.predict.ledger import StageMemory, stage_memory
from harness.predict.prediction import reserved_of
from harness.predict.ranges import class_of
from harness.predict.rank_parts import MissingEventsError, Read
from harness.predict.shipped_traces import events_made_here, find_events
from harness.predict.stages import Composer
from harness.predict.step_history import Steps
from harness.predict.tracer import Tracing, trace_cache
from harness.records.store import write_atomically

_SETTINGS = {"expandable": AllocatorSettings(expandable_segments=True), "native": AllocatorSettings()}
# NVIDIA/Megatron-LM pull request 6429, 64 H100: with overlapped expert-parallel communication two streams keep blocks of
# their own, and 1.13 bytes are reserved for each of tensors.
_TIMES = 4
_NOT_CUT = {"reserved": (1.0, 1.0), "fits": (1.0, 1.0)}
_TWO_STREAMS = {"reserved": (1.04, 1.13, 1.13), "fits": (1.04, 1.13, 1.13), "late_replayed": 1.0, "cut": _NOT_CUT}
_OVERLAPPED = "overlapped expert communication"


def page(host: Host, replays: Path | None = None) -> Page:
    """Compare every row of results/scripted_gpu, and keep the ratios of classes where the planner reads them.

    ``replays``: an earlier page's document, whose replays are judged again.
    """
    rows = json.loads(replays.read_text())["rows"] if replays else [*_rows(host)]
    compared = [row for row in rows if "expandable" in row]
    errors = [abs(_error(row)) for row in compared]
    classes = {name: _classed(compared, name) for name in sorted({row["class"] for row in compared})}
    overlapped = [row for row in rows if row["class"] == _OVERLAPPED and row["peak_reserved_late_bytes"]]
    two_streams = _TWO_STREAMS | {"late": _most_late(overlapped), "rows": len(overlapped)}
    classes |= {_OVERLAPPED: dict.fromkeys(_SETTINGS, two_streams)}
    kept = {name: {how: _read(row) for how, row in settings.items()} for name, settings in classes.items()}
    write_atomically(reserved.DATA, data_text({"classes": kept}))
    reserved._ratios.cache_clear()
    uneven = [*_rows_apart(host, scripted_points.UNEVEN_FILE, "expandable")]
    native = [*_rows_apart(host, scripted_points.NATIVE_FILE, "native")]
    late = [row for row in compared if row["peak_reserved_late_bytes"]]
    num_held = sum(row["peak_reserved_late_bytes"] <= _upper_end(row) for row in late)
    return Page(
        "Reserved bytes and torch's CUDA allocator",
        f"{len(compared)} ranks: reserved bytes of composed and replayed steps differ from torch's allocator by "
        f"{plain(fmean(errors))} (mean), {plain(max(errors))} (worst); "
        f"{sum(error <= 0.01 for error in errors)} by at most 1 %. With streams that are always behind, {num_held} of "
        f"{len(late)} reserve at most the upper end of the range.",
        {"rows": rows, "uneven": uneven, "native": native},
        [*_NOTES, "", *_ratios(classes)],
        sections({
            "All rows": _table(compared),
            "Ranks above the upper end": [
                "The end holds 95 of 100 ranks by its definition. In time: the predicted figure is as much too low without late streams.", "",
                *_above_table([row for row in late if row["peak_reserved_late_bytes"] > _upper_end(row)]),
            ],
            "Without expandable segments": _native_table(native),
            "Uneven routing": _uneven_table(uneven),
            "Rows that are not composed": (
                "* {}, {}, stage {}: {}".format(*_rank(row), row["problem"]) for row in rows if "problem" in row
            ),
        }),
    )  # fmt: skip


_NOTES = (
    "Measured: expandable segments, streams never late. A rank's build, two steps and its states are composed of recorded "
    "requests of single layers; nothing of the whole step is traced, and nothing is fitted. Fits: what the fullest moments "
    "need once cached segments are given back. Late: DDP's stream is always behind, and blocks that it reads are free when the "
    "host waits for the device; predicted late is a replay of that. Native figures are predictions, but for the ranks below that were measured without expandable segments.",
)


def _read(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the planner reads of a row."""
    own = {name: value for name, value in row.items() if name != "rows"}
    return own | {"cut": [share for ends in row["cut"].values() for share in ends]}


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
    about, cases = events_made_here(), tuple(event_cases(point.spec, implementation))
    shipped = find_events(about.megatron_core, installed_software())
    found = {case.key: chunk for case in cases if shipped and (chunk := shipped.read(case))}
    due = {case.key: (implementation, case) for case in cases if case.key not in found}
    found |= {case.key: without_small(chunk) for case, chunk in traces.recorded(about, host, due)}
    return lambda case: found.get(case.key)


def _of_setting(
    point: scripted_points.Point, setting: str, rows: list[dict[str, Any]], host: Host, read: Read
) -> Iterator[dict[str, Any]]:
    composer, costs = _composed(point, setting, host)
    spec = composer.spec
    for row in rows:
        stage = stage_memory(spec, row["stage"], costs[row["stage"]])
        found: dict[str, Any] = {"class": class_of(spec, stage.total).name, "predicted_peak_bytes": stage.total}
        try:
            for how, settings in _SETTINGS.items():
                held = reserved.replay(composer, stage, costs[row["stage"]], settings, read)
                found[how] = {"reserved_bytes": held.in_time[1], "fits_bytes": held.fits[1]}
            if row["peak_reserved_late_bytes"]:
                found["behind_bytes"] = _behind(composer, stage, costs[row["stage"]], read)
            if setting == point.spec.recompute.text and not row["stage"]:
                found["longer"] = _longer(composer, stage, costs[row["stage"]], read)
        except MissingEventsError as error:
            found["problem"] = str(error)
        names = ("point", "setting", "stage", "peak_allocated_bytes", "peak_reserved_bytes", "peak_reserved_late_bytes")
        yield {name: row[name] for name in names} | found


def _behind(composer: Composer, stage: StageMemory, costs: tuple[ChunkCost, ...], read: Read) -> int:
    steps, total = reserved.first_steps(composer, stage, costs, read), reserved.device_bytes(composer.spec)
    settings = _SETTINGS["expandable"]
    free = replayed(steps.events, settings, total_bytes=total, cycles=steps.cycles)
    return reserved.behind_bytes(steps, settings, total, free)


def _rows_apart(host: Host, file: Path, how: str) -> Iterator[dict[str, Any]]:
    """Predict ranks under another setting of the allocator, or of uneven routing with the draws of `plan --routing`."""
    for row in rows_of(file):
        point = next(scripted_points.points(host, [row["point"]]))
        composer, costs = _composed(point, row["setting"], host)
        stage = stage_memory(composer.spec, row["stage"], costs[row["stage"]])
        draws = read_varied(None, row["routing"]).draws(composer.spec) if "routing" in row else ()
        asked = stage, costs[row["stage"]], _SETTINGS[how]
        try:
            held = reserved.replay(composer, *asked, _reader(point, host), draws)
        except MissingEventsError:
            held = reserved.estimated(composer.spec, stage, _SETTINGS[how])
        yield row | {"reserved_range_bytes": reserved_of(held)}


def _above_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for row in rows:
        late, end = row["peak_reserved_late_bytes"], _upper_end(row)
        in_time = row["peak_reserved_bytes"] / row["expandable"]["reserved_bytes"] - 1
        cells.append((*_rank(row), *gib(late, _late(row), end), signed(late / end - 1), signed(in_time)))
    return table("point | setting | stage: | late GiB: | predicted late: | upper end: | above: | in time:", cells)


def _native_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for row in rows:
        (_, likely, most), late = row["reserved_range_bytes"], row["peak_reserved_late_bytes"]
        sizes, error = gib(*_measured(row), likely), signed(likely / row["peak_reserved_bytes"] - 1)
        cells.append((*_rank(row), *sizes, error, *gib(late, most), "yes" if late <= most else "no"))
    heads = "point | setting | stage: | allocated GiB: | reserved: | predicted: | : | late: | upper end: | in range"
    return table(heads, cells)


def _uneven_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for row in rows:
        low, likely, high = row["reserved_range_bytes"]
        held = "yes" if low <= row["peak_reserved_bytes"] <= high else "no"
        cells.append((*_rank(row), row["routing"], *gib(*_measured(row), likely, low, high), held))
    heads = "point | setting | stage: | tokens of an expert | allocated GiB: | reserved: | predicted: | from: | to: | in range"
    return table(heads, cells)


def _rank(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["point"], row["setting"], row["stage"]


def _measured(row: dict[str, Any]) -> tuple[int, int]:
    return row["peak_allocated_bytes"], row["peak_reserved_bytes"]


def _composed(point: scripted_points.Point, setting: str, host: Host) -> tuple[Composer, Any]:
    spec = point.spec.model_copy(update={"recompute": parse_recompute(setting)})
    composer = Composer(spec, settled_implementation(spec), Software(apex=False))
    found = Tracing(host, trace_cache(host.shell)).traces(composer.cases(), composer.implementation).even
    return composer, composer.chunk_costs(found)


def _longer(
    composer: Composer, stage: StageMemory, costs: tuple[ChunkCost, ...], read: Read
) -> dict[str, dict[str, float]]:
    """Return what four times the composed micro-batches take, as shares of what the usual ones do; empty if those are exact."""
    batch = composer.spec.batch
    many = batch.model_copy(update={"global_batch_size": batch.global_batch_size * 3 * _TIMES})
    spec, usual = composer.spec.model_copy(update={"batch": many}), rank_events.ROUNDS
    steps, found = list[Steps](), dict[str, dict[str, float]]()
    for rounds in (usual, usual * _TIMES):
        rank_events.ROUNDS = rounds
        own = replace(composer, spec=spec, shared=type(composer.shared)())
        steps.append(reserved.first_steps(own, stage, costs, read))
    rank_events.ROUNDS = usual
    for how, settings in _SETTINGS.items():
        total = reserved.device_bytes(spec)
        few, more = (replayed(each.events, settings, total_bytes=total, cycles=each.cycles) for each in steps)
        if steps[0].num_left or not few.is_exact:
            shares = (more.peak_reserved_bytes / few.peak_reserved_bytes, more.least_bytes / few.least_bytes)
            found[how] = dict(zip(_NOT_CUT, shares, strict=True))
    return found


def _cut(rows: Sequence[dict[str, Any]], how: str) -> dict[str, tuple[float, float]]:
    """Return the ends of nine of ten rows: what the job may take, as shares of what as many micro-batches as are replayed do."""
    known = [row["longer"][how] for row in rows if how in row.get("longer", ())]
    found = {what: _at([each[what] for each in known], 0.05, 0.95) for what in _NOT_CUT}
    return {what: (min(1.0, low), max(1.0, high)) for what, (low, high) in found.items()}


def _error(row: dict[str, Any]) -> float:
    return float(row["expandable"]["reserved_bytes"] / row["peak_reserved_bytes"] - 1)


def _late(row: dict[str, Any]) -> int:
    return int(row["expandable"]["reserved_bytes"] + row["behind_bytes"])


def _upper_end(row: dict[str, Any]) -> float:
    return _late(row) * reserved._ratios()[row["class"]]["expandable"].late_replayed


def _at(shares: Sequence[float], *parts: float) -> list[float]:
    """Return the share below which each part of all lies."""
    ordered = sorted(shares)
    return [round(ordered[round((len(ordered) - 1) * part)], 4) for part in parts]


def _most_late(rows: Sequence[dict[str, Any]]) -> float:
    return _most([row["peak_reserved_late_bytes"] / row["peak_reserved_bytes"] for row in rows], 0.9)


def _most(shares: Sequence[float], part: float) -> float:
    """Return what such a part of them is not above."""
    return ceil(max(1.0, sorted(shares)[ceil(len(shares) * part) - 1]) * 1e4) / 1e4


def _classed(rows: Sequence[dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    own = [row for row in rows if row["class"] == name]
    late = [row for row in own if row["peak_reserved_late_bytes"]]

    def spread(how: str, what: str) -> list[float]:
        measured = how == "expandable" and what == "reserved"
        sizes = (row["peak_reserved_bytes"] if measured else row[how][f"{what}_bytes"] for row in own)
        shares = [size / row["predicted_peak_bytes"] for size, row in zip(sizes, own, strict=True)]
        return _at(shares, 0.05, 0.5, 0.95)

    return {
        how: {what: spread(how, what) for what in ("reserved", "fits")}
        | {
            "late": _most_late(late),
            "late_replayed": _most([row["peak_reserved_late_bytes"] / _late(row) for row in late], 0.95),
            "cut": _cut(own, how),
            "rows": len(own),
        }
        for how in _SETTINGS
    }


def _ratios(classes: dict[str, Any]) -> list[str]:
    rows = [(name, how, row) for name, settings in classes.items() for how, row in settings.items()]
    found = table("class | allocator | reserved / peak | fits / peak | late: | late, replayed: | longer: reserved | longer: fits | rows:", (
        (name, how, *(_shares(row[what]) for what in ("reserved", "fits")), *(f"{row[each]:.3f}" for each in ("late", "late_replayed")),
         *(_shares(row["cut"][what]) for what in _NOT_CUT), row["rows"])
        for name, how, row in rows
    ))  # fmt: skip
    text = (
        "Three figures: below them lie 5, 50 and 95 of 100 rows. Late: what side streams that are always behind reserve, as a share of what others reserve, and of what is predicted for them; "
        "90 and 95 of 100 rows are below. Longer: of replays in which "
        f"blocks do not return to the places of an earlier micro-batch, the shares that {_TIMES} times as many micro-batches take, "
        "5 and 95 of 100 rows; they widen the range."
    )
    return [*found, "", text]


def _shares(ends: Sequence[float]) -> str:
    return " ".join(f"{end:.3f}" for end in ends)


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for row in rows:
        held, native = ([row[how][f"{what}_bytes"] for what in ("reserved", "fits")] for how in _SETTINGS)
        late = row["peak_reserved_late_bytes"]
        sizes = (*gib(*_measured(row), held[0]), signed(_error(row)), *gib(held[1]))
        cells.append((*_rank(row), *sizes, *(gib(late, _late(row)) if late else "--"), *gib(*native)))
    heads = (
        "point | setting | stage: | allocated GiB: | reserved: | predicted: | : | fits: | late: | predicted late: | "
        "native reserved: | native fits:"
    )
    return table(heads, cells)
