"""Times the host in layers whose kernels do nothing, fits its work to the operations, and compares published costs of settings."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import scripted_points
from page import Page, signed, table
from published import predicted
from times_steps import published_spec

from harness.experiment.model import LayerKind
from harness.experiment.recompute import parse_recompute
from harness.launch.environment import Host
from harness.launch.machine import software_for
from harness.predict.calibration import least_squares
from harness.predict.compose import Work
from harness.predict.time_model import AGAIN, ATTENTION, CALL
from harness.predict.trace_book import AROUND, work_around_checkpoints
from harness.predict.trace_cases import CaseMaker
from harness.predict.tracer import Tracing
from harness.records.trace import Phase, TraceRequest

# A point, its kind of layer, and settings of which each repeats one module.
_MLA = ("layernorm", "moe_act", "mla_up_proj", "core_attn", "moe", "shared_experts", "full:uniform:1")
_DENSE = ("core_attn", "mlp", "full:uniform:1")
LAYERS: tuple[tuple[str, LayerKind, tuple[str, ...]], ...] = (
    ("moonlight_16b_pretrain_bf16_16_library", "moe", _MLA),
    ("moonlight_16b_pretrain_bf16_16_library", "dense", ("layernorm", "mla_up_proj", *_DENSE)),
    ("deepseek_v3_pretrain_bf16_1024", "moe", _MLA),
    ("qwen3_30b_a3b_pretrain_bf16_16", "moe", ("layernorm", "moe_act", "core_attn", "moe", "full:uniform:1")),
    ("llama3_8b_pretrain_bf16_8", "dense", _DENSE),
    ("llama3_70b_sft_bf16_32", "dense", _DENSE),
)
_NUM_LAYERS = 4
CONSTANTS = ("call", "attention", "backward", "around")
# How many times as much the cost of a setting counts as the ratio of both passes, which varies with the kind of layer.
_OF_COSTS = 3.0

Row = dict[str, Any]


def page(source: Path, host: Host, measured: Path | None = None) -> Page:
    """Measure, and count what traces of the same layers hold, or take an earlier page's rows. ``source``: published costs."""
    if measured:
        return judged(json.loads(measured.read_text())["rows"], _published(source, host))
    rows = [row for point, kind, settings in LAYERS for row in _measured(host, point, kind, settings)]
    return judged(rows, _published(source, host))


def judged(rows: list[Row], published: list[Row]) -> Page:
    """Return the page of measured rows and of published ones."""
    costs = _costs(rows, lambda row: (row["forward_s"], row["backward_s"]))

    def errors(values: Sequence[float]) -> list[float]:
        return [cost - known for cost, known in zip(_costs(rows, partial(_units, values)), costs, strict=True)]

    found = least_squares(errors, (7.0, 5.0, 0.5, 2.0), ((1, 50), (1, 50), (0.05, 2), (0.05, 50)))
    call, attention, backward, around = found
    by_planner = _costs(rows, partial(_units, (CALL, ATTENTION, backward, AROUND)))
    settings = [
        row | {"predicted": cost, "measured": known}
        for row, cost, known in zip(rows, by_planner, costs, strict=True) if row["setting"] != "none"
    ]  # fmt: skip
    document = {**dict(zip(CONSTANTS, found, strict=True)), "rows": rows, "published": published}
    headline = (
        f"A call of a module takes the host as long as {call:.1f} simple operations, an attention as long as {attention:.1f} calls, a checkpoint "
        f"as long as {around:.1f} beside what it repeats; an operation of a backward pass {backward:.2f} times as long as one of a forward pass. "
        f"Cost of a setting to the host: off by {_mean(settings)}; published cost of one where the host is the limit: by {_mean(published)}."
    )
    heads = "predicted cost: | measured cost: | error:"
    return Page("The host's work in a layer", headline, document, [
        "Processor milliseconds of a layer on a scripted GPU (tests/scripted_cuda): torch's CUDA build, megatron-core and "
        "transformer-engine are real, kernels do nothing. The constants are fitted to these rows, and the planner has them for what runs again. "
        "A torch operation by itself takes the host a fraction of a module's call: Moonlight's `mla_up_proj` repeats 31 simple operations, most "
        "of them of the rotary embedding, and two products.", "",
        *table(f"point | layer | setting | forward ms: | backward ms: | {heads}", (
            (row["point"], row["layer"], row["setting"], *(f"{row[name] * 1e3:.2f}" for name in ("forward_s", "backward_s")), *_shown(row))
            for row in settings
        )), "",
        "Published costs on H100. Their control takes longer than the host's processor needs, so the planner takes a repeated operation for "
        f"{AGAIN:g} times one of a published step; this share alone was chosen with these rows in view:", "",
        *table(f"setting | predicted ms: | published ms: | {heads}", (
            (row["setting"], *(f"{row[name] * 1e3:.0f}" for name in ("predicted_s", "measured_s")), *_shown(row)) for row in published
        )),
    ])  # fmt: skip


def _shown(row: Row) -> tuple[str, ...]:
    return signed(row["predicted"]), signed(row["measured"]), f"{(row['predicted'] - row['measured']) * 100:+.1f}"


def _mean(rows: list[Row]) -> str:
    return f"{mean(abs(row['predicted'] - row['measured']) for row in rows) * 100:.1f} points on average"


def _published(source: Path, host: Host) -> list[Row]:
    """Predict the settings of one published job; the first is the control."""
    document = json.loads(source.read_text())
    spec, (software, _) = published_spec(document), software_for("h100", host)
    found = []
    for row in document["rows"]:
        changed = spec.model_copy(update={"recompute": parse_recompute(row["recompute"])})
        seconds = predicted(changed, software, host).step_time_s
        found.append({"setting": row["recompute"], "predicted_s": seconds, "measured_s": row["step_s"]})
    control, *others = found
    return [
        row | {name: row[f"{name}_s"] / control[f"{name}_s"] - 1 for name in ("predicted", "measured")}
        for row in others
    ]


def _measured(host: Host, point: str, kind: LayerKind, settings: tuple[str, ...]) -> Iterator[Row]:
    make = CaseMaker(next(scripted_points.points(host, [point])).spec, "transformer_engine")
    cases = {
        name: [make.layers(kind, parse_recompute(name), num) for num in (1, 2, _NUM_LAYERS)]
        for name in ("none", *settings)
    }
    traces = (
        Tracing(host, None).traces(tuple(case for each in cases.values() for case in each), "transformer_engine").even
    )
    times = _run(TraceRequest(cases=tuple(each[-1] for each in cases.values()), implementation="transformer_engine"))
    calls = _operations(work_around_checkpoints(cases["full:uniform:1"][0].spec))["recompute"][1] - AROUND
    for name, (single, double, several) in cases.items():
        beside = work_around_checkpoints(single.spec)
        checkpoints = round(sum(count for _, count in beside) / AROUND)
        counts = _operations(Work.total((Work.of(traces[double.key].ops) - Work.of(traces[single.key].ops), beside)))
        counts["recompute"][1] -= AROUND * checkpoints
        for phase in ("forward", "backward"):  # what the trace counts as simple operations
            counts[phase][0], counts[phase][1] = counts[phase][0] - calls, counts[phase][1] + calls
        forward_s, backward_s = (each / _NUM_LAYERS for each in times[several.key])
        yield {
            "point": point, "layer": kind, "setting": name, "checkpoints": checkpoints, "operations": counts,
            "forward_s": forward_s, "backward_s": backward_s,
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


def _operations(work: Work) -> dict[str, list[float]]:
    """Return how many simple operations, calls of modules and attentions each phase has."""
    found = {phase: [0.0, 0.0, 0.0] for phase in get_args(Phase)}
    for op, count in work:
        found[op.phase][{"gemm": 1, "attention": 2}.get(op.kind, 0)] += count
    return found


def _units(values: Sequence[float], row: Row) -> tuple[float, float]:
    """Return how many simple operations take the host as long as each pass; recompute belongs to the backward one."""
    call, attention, backward, around = values
    each = {
        phase: simple + call * (calls + attention * attentions)
        for phase, (simple, calls, attentions) in row["operations"].items()
    }
    return each["forward"], backward * each["backward"] + each["recompute"] + call * around * row["checkpoints"]


def _costs(rows: list[Row], passes: Callable[[Row], tuple[float, float]]) -> list[float]:
    """Return each setting's cost against none, which stands before it; of none a share of the ratio of its passes."""
    found, base = list[float](), 0.0
    for row in rows:
        forward, backward = passes(row)
        is_control = row["setting"] == "none"
        base = forward + backward if is_control else base
        found.append(backward / forward / _OF_COSTS if is_control else (forward + backward) / base - 1)
    return found
