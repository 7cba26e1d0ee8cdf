"""Times the host's work around checkpoints and in backward passes, in ranks whose kernels do nothing."""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, get_args

import scripted_points
from page import Page, signed, table

from harness.experiment.model import LayerKind
from harness.experiment.modules import MODULES
from harness.experiment.recompute import parse_recompute
from harness.launch.environment import Host
from harness.predict.compose import Work
from harness.predict.time_model import typical
from harness.predict.trace_book import DISCARDING, PLAIN, work_around_checkpoints
from harness.predict.trace_cases import CaseMaker
from harness.predict.tracer import Tracing
from harness.records.trace import Phase, TraceRequest

# A point, its kind of layer, and settings of which each repeats one module.
LAYERS: tuple[tuple[str, LayerKind, tuple[str, ...]], ...] = (
    ("moonlight_16b_pretrain_bf16_16_library", "moe",
     ("layernorm", "moe_act", "mla_up_proj", "core_attn", "moe", "shared_experts", "full:uniform:1")),
    ("qwen3_30b_a3b_pretrain_bf16_16", "moe", ("layernorm", "moe_act", "core_attn", "moe", "full:uniform:1")),
    ("llama3_8b_pretrain_bf16_8", "dense", ("core_attn", "mlp", "full:uniform:1")),
)  # fmt: skip
_NUM_LAYERS = 4
KINDS = ("plain", "discarding")

Row = dict[str, Any]


def page(host: Host) -> Page:
    """Measure, and count what the traces of the same layers hold."""
    return judged([row for point, kind, settings in LAYERS for row in _measured(host, point, kind, settings)])


def judged(rows: list[Row]) -> Page:
    """Return the page of measured rows."""
    kept = [row for row in rows if row["setting"] == "none"]
    returning = median(row["backward_s"] / row["forward_s"] / row["backward"] * row["forward"] for row in kept)
    repeated = median(
        row["forward_s"] / row["forward"] * (row["forward"] + row["backward"]) / _seconds(row) for row in kept
    )
    around = {
        name: median(_around(row, rows, returning) / row["checkpoints"] for row in rows if row["kind"] == name)
        for name in KINDS
    }
    document = {"returning": returning, "repeated": repeated, **around, "rows": rows}
    headline = (
        f"An operation of a forward pass takes the host {repeated:.2f} times as long as the mean of both passes. Beyond the operations "
        f"that it repeats, a checkpoint takes it as long as {around['plain']:.1f} simple ones of a forward pass, or {around['discarding']:.1f} "
        "where it discards and restores its output."
    )
    cells = (
        (row["point"], row["setting"], f"{row['forward_s'] * 1e3:.2f}", f"{row['backward_s'] * 1e3:.2f}",
         signed(_seconds(row) / _seconds(_control(row, rows)) - 1),
         "" if row["setting"] == "none" else f"{_around(row, rows, returning) / row['checkpoints']:.1f}")
        for row in rows
    )  # fmt: skip
    return Page("The host's work in a layer", headline, document, [
        "Processor milliseconds of a layer on a scripted GPU (tests/scripted_cuda): torch's CUDA build, megatron-core and "
        "transformer-engine are real, kernels do nothing. The constants are medians over these rows.", "",
        *table("point | setting | forward ms: | backward ms: | cost: | operations around a checkpoint:", cells),
    ])  # fmt: skip


def _measured(host: Host, point: str, kind: LayerKind, settings: tuple[str, ...]) -> Iterator[Row]:
    spec = next(scripted_points.points(host, [point])).spec
    make = CaseMaker(spec, "transformer_engine")
    cases = {
        name: [make.layers(kind, parse_recompute(name), num) for num in (1, 2, _NUM_LAYERS)]
        for name in ("none", *settings)
    }
    traces = (
        Tracing(host, None).traces(tuple(case for each in cases.values() for case in each), "transformer_engine").even
    )
    times = _run(TraceRequest(cases=tuple(each[-1] for each in cases.values()), implementation="transformer_engine"))
    for name, (single, double, several) in cases.items():
        counted = _operations(Work.of(traces[double.key].ops) - Work.of(traces[single.key].ops))
        forward_s, backward_s = (each / _NUM_LAYERS for each in times[several.key])
        discards = name in MODULES and MODULES[name].discards_output
        yield {
            "point": point, "setting": name, "kind": "none" if name == "none" else KINDS[discards],
            "checkpoints": sum(count for _, count in work_around_checkpoints(single.spec)) // (PLAIN, DISCARDING)[discards],
            "forward_s": forward_s, "backward_s": backward_s, **counted,
        }  # fmt: skip


def _run(request: TraceRequest) -> dict[str, tuple[float, float]]:
    """Return the seconds of both passes of each case."""
    sys.path.append(str(Path(__file__).parents[2]))
    from tests.scripted_cuda.lane import Machine

    with tempfile.TemporaryDirectory() as name:
        asked, out = Path(name, "request.json"), Path(name, "answer.json")
        asked.write_text(request.model_dump_json())
        machine = Machine(Path(name), 1, scripted_points.DEVICE_BYTES)
        done = machine.run(Path(__file__).with_name("host_rank.py"), asked, out)
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        return dict(json.loads(out.read_text()))


def _operations(work: Work) -> dict[str, float]:
    """Return how many simple operations take the host as long as each phase; a product takes as long as several."""
    found, e = dict[str, float].fromkeys(get_args(Phase), 0.0), typical("h100")
    for op, count in work:
        found[op.phase] += count * (e.call_s / e.launch_s if op.kind in ("gemm", "attention") else 1)
    return found


def _seconds(row: Row) -> float:
    return float(row["forward_s"] + row["backward_s"])


def _control(row: Row, rows: list[Row]) -> Row:
    return next(each for each in rows if each["point"] == row["point"] and each["setting"] == "none")


def _around(row: Row, rows: list[Row], returning: float) -> float:
    """Return the operations that take as long as the row's checkpoints, beyond those that are counted."""
    base = _control(row, rows)
    counted = [each["forward"] + each["recompute"] + returning * each["backward"] for each in (row, base)]
    more = (_seconds(row) - _seconds(base)) / base["forward_s"] * base["forward"]
    return float(more - counted[0] + counted[1])
