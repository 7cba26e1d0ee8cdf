"""``scripts/accuracy --scripted``: ranks of shipped H100 points over torch's real CUDA allocator, beside their predictions.

One rank of a job runs in one process on a scripted GPU (tests/scripted_cuda): torch's allocator, megatron-core and
transformer-engine are real, kernels do nothing and nothing is sent. Each point has a file in results/scripted_gpu.
The command skips ranks that a file already has, and makes all predictions anew.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from page import rows_of
from traces import h100_points

from harness.api import Experiment, plan
from harness.cli.options import JudgeOptions, LaunchOptions
from harness.cli.requests import run_request
from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute_plan import PLAN
from harness.launch.environment import Host
from harness.measure.understanding import settle
from harness.plan.rows import SettingRow
from harness.records.folders import results_dir
from harness.records.store import write_atomically
from harness.resolve.recipe import at_path
from harness.show.terminal import narrate

FOLDER = results_dir() / "scripted_gpu"
# Measured with every legal setting (of full:block the least, middle and most layers); other points with their own.
IN_FULL = (
    "llama3_8b_pretrain_bf16_8", "llama3_70b_sft_bf16_32", "llama31_405b_pretrain_bf16_512",
    "qwen3_30b_a3b_pretrain_bf16_16", "qwen3_235b_a22b_pretrain_bf16_256", "deepseek_v3_pretrain_bf16_1024",
)  # fmt: skip
_FLEX = "kernels.moe_token_dispatcher_type=alltoall"
# What a scripted GPU cannot run, and why. Ranks run without it; predictions are made without it.
_LEFT_OUT = {
    "kernels.tp_comm_overlap=false": (True, "user buffers (they need multicast or CUDA IPC)"),
    "parallelism.defer_embedding_wgrad_compute=false": (True, "deferred embedding gradients (they need Apex)"),
    _FLEX: ("flex", "the flex dispatcher (it needs DeepEP or HybridEP)"),
}
_CONVOLUTION = "causal_conv1d's kernel (it needs nvcc; a function that allocates as much stands in)"
# Ranks whose experts get other shares of the tokens in every pass: point, stage, tokens of an expert as for `--routing`.
UNEVEN = (
    ("deepseek_v3_pretrain_bf16_1024_library", 0, "4096,1600"), ("deepseek_v3_pretrain_bf16_1024_library", 15, "4096,1600"),
    ("deepseek_v3_pretrain_bf16_256_library_32nodes", 7, "4096,1600"),
)  # fmt: skip
# Plans by layer, measured on every stage: what `plan --optimal --assume apex=none` finds with --fit_into 48 and 56.
BY_LAYER = {
    "llama3_70b_pretrain_bf16_64": "plan:1xfull+3xmlp/3xmlp+1xnone/2xmlp+2xnone/2xmlp+2xnone/2xmlp+2xnone;"
    "1xfull+2xmlp+1xnone/2xmlp+2xnone/2xmlp+2xnone/2xmlp+2xnone/1xmlp+3xnone;"
    "2xmlp+2xnone/2xmlp+2xnone/2xmlp+2xnone/2xmlp+2xnone/4xnone;"
    "3xmlp+1xnone/2xmlp+2xnone/2xmlp+2xnone/2xmlp+2xnone/4xnone",
    "llama3_70b_sft_bf16_32": "plan:3xfull+1xmlp/3xmlp+1xnone/3xmlp+1xnone/1xfull+3xmlp/2xmlp+2xnone;"
    "3xfull+1xmlp/1xmlp+3xnone/1xfull+2xmlp+1xnone/1xmlp+3xnone/1xfull+2xmlp+1xnone;"
    "3xmlp+1xnone/3xmlp+1xnone/3xmlp+1xnone/3xmlp+1xnone/4xnone;"
    "3xmlp+1xnone/3xmlp+1xnone/3xmlp+1xnone/1xfull+3xmlp/4xnone",
}
UNEVEN_FILE = FOLDER / "uneven" / "routing.json"
# Ranks without expandable segments: point and stage.
NATIVE = (
    ("llama3_8b_pretrain_bf16_8", 0), ("llama3_70b_sft_bf16_32", 0), ("llama3_70b_sft_bf16_32", 3),
    ("llama3_8b_pretrain_fp8_cs_8", 0),
    ("moonlight_16b_pretrain_bf16_16_library", 0), ("llama31_405b_pretrain_bf16_512", 7),
    ("qwen25_7b_pretrain_bf16_2_library", 0),
)  # fmt: skip
NATIVE_FILE = FOLDER / "native" / "streams.json"
_WITHOUT_SEGMENTS = "allocator=expandable_segments:False"
_STEPS = {"none": 3}  # of other CUDA graphs so many, because megatron-core captures after its own warm-up:
_STEPS_OF_GRAPHS = 6
DEVICE_BYTES = 1 << 39  # more than an H100 has, so that all ranks can be measured


@dataclass(frozen=True)
class Row:
    """One stage of a point under one setting. Bytes of torch's allocator; None where the rank failed, with its ``failure``.

    Under CUDA graphs ``peak_allocated_bytes`` is that of replayed steps, ``peak_eager_bytes`` that of the steps before the
    capture, and ``peak_capture_bytes`` that of the step that begins with it; reserved is that of all.
    ``predicted_held_bytes``: of the fullest stage, the predicted peak with what graphs hold beyond it.
    ``peak_reserved_late_bytes``: side streams are always behind, so that a block that one used is free at the next
    synchronisation only. A GPU lies between it and ``peak_reserved_bytes``.
    """

    point: str
    setting: str
    stage: int
    predicted_peak_bytes: int
    predicted_held_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_eager_bytes: int | None = None
    peak_capture_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_reserved_late_bytes: int | None = None
    num_microbatches: int = 0
    left_out: tuple[str, ...] = ()
    failure: str | None = None
    seconds: float = 0.0
    versions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Point:
    """A job as `mbr-perf plan` is asked for it, what it resolves to, and what was left out of it."""

    name: str
    asked: dict[str, Any]
    spec: ExperimentSpec
    left_out: tuple[str, ...]


def points(host: Host, names: Sequence[str]) -> Iterator[Point]:
    """Yield the H100 points that the rules let run, with those by layer; of those named, where ``names`` has any."""
    for name, asked in h100_points(()):
        jobs = {name: asked} | ({f"{name}_by_layer": asked | {"recompute": BY_LAYER[name]}} if name in BY_LAYER else {})
        for job, options in jobs.items():
            if names and job not in names:
                continue
            try:
                yield _runnable(job, options, host)
            except BadRequestError as error:
                narrate(f"{job}: cannot run: {error.message}")


def _runnable(name: str, asked: dict[str, Any], host: Host) -> Point:
    """A rank sees every kind of step in two micro-batches per stage; more cost only time."""
    published = _spec(asked, host)
    left_out = {
        text: why for text, (value, why) in _LEFT_OUT.items() if at_path(published, text.partition("=")[0]) == value
    }
    if "layernorm" in published.recompute.text and published.cuda_graph.impl != "none" and _FLEX in left_out:
        left_out["cuda_graph.impl=none"] = "CUDA graphs (rule G35 forbids them without the flex dispatcher)"
    enough = min(2 * published.parallelism.pipeline_model_parallel_size, published.num_microbatches)
    while published.num_microbatches % enough:
        enough += 1
    size = published.batch.global_batch_size * enough // published.num_microbatches
    changed = asked | {"global_batch_size": size, "set_values": list(left_out) or None}
    stands_in = (_CONVOLUTION,) if published.model.linear_attention else ()
    return Point(name, changed, _spec(changed, host), (*left_out.values(), *stands_in))


def _spec(asked: dict[str, Any], host: Host) -> ExperimentSpec:
    return settle(run_request(Experiment(**asked), JudgeOptions(), LaunchOptions()), host).spec


def planned(point: Point, kept: Iterable[str], *, only_own: bool) -> list[SettingRow]:
    """Return the legal settings of a point that are to be measured, or whose rows are ``kept``."""
    own = point.spec.recompute.text
    only = (own, *sorted({*kept} - {own})) if only_own else ()
    found = plan(Experiment(**point.asked), only=only, assume="apex=none").settings
    legal = [row for row in found if row.legal and row.stages and (row.recompute in only or not only_own)]
    blocks = [setting.recompute for setting in legal if setting.recompute.startswith("full:block:")]
    between = set(blocks) - {own, *blocks[:1], *blocks[len(blocks) // 2 :][:1], *blocks[-1:]}
    return [setting for setting in legal if setting.recompute not in between]


def due(point: Point, setting: SettingRow, kept: Iterable[int] = ()) -> list[Row]:
    """Return rows without measurement: the first stage, the last one, the one predicted fullest, and those ``kept``.

    Under a plan by layer every stage has a row.
    """
    totals = [stage.total for stage in setting.stages]
    stages = sorted({0, len(totals) - 1, totals.index(max(totals)), *kept})
    if setting.recompute.startswith(PLAN):
        stages = [*range(len(totals))]
    held = (setting.peak_bytes or 0) + setting.graph_pool_bytes if setting.graph_pool_bytes else None
    return [
        Row(
            point.name, setting.recompute, stage, totals[stage], held, num_microbatches=point.spec.num_microbatches,
            left_out=point.left_out,
        )
        for stage in stages
    ]  # fmt: skip


def measured(point: Point, row: Row, *more: str, busy: bool = True) -> Row:
    """Run the first rank of the row's stage; under the point's own setting also with side streams that are always behind."""
    from tests.scripted_cuda.lane import Machine

    size = point.spec.num_gpus // point.spec.parallelism.pipeline_model_parallel_size
    steps = _STEPS.get(point.spec.cuda_graph.impl, _STEPS_OF_GRAPHS)
    asked = {name: value for name, value in point.asked.items() if value and name != "set_values"} | {
        "recompute": row.setting
    }
    words = [f"{name}={value}" for name, value in asked.items()]
    words += [f"set={' '.join(point.asked['set_values'])}"] if point.asked["set_values"] else []
    words += [*(["balanced=1"] if point.spec.model.moe else []), *more]
    start, found = time.monotonic(), []
    for is_busy in (False, True) if busy and row.setting == point.spec.recompute.text else (False,):
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(Path(folder), 1, DEVICE_BYTES, busy=is_busy)
            try:
                found.append(machine.one_rank(str(row.stage * size), str(steps), *words, timeout_s=1800))
            except RuntimeError as error:
                last = [line for line in str(error).splitlines() if line.strip()][-1]
                return replace(row, failure=last, seconds=round(time.monotonic() - start, 1))
    calm, *late = found
    peaks, graph = calm["peak_allocated_bytes"], point.spec.cuda_graph
    if graph.impl != "none":
        eager, captured = max(peaks[: graph.warmup_steps]), peaks[graph.warmup_steps]
        row = replace(row, peak_eager_bytes=eager, peak_capture_bytes=captured)
        peaks = peaks[-1:]
    return replace(
        row, peak_allocated_bytes=max(peaks), peak_reserved_bytes=max(calm["peak_reserved_bytes"]),
        peak_reserved_late_bytes=max(late[0]["peak_reserved_bytes"]) if late else None, seconds=round(time.monotonic() - start, 1),
        versions=tuple(calm["versions"].items()),
    )  # fmt: skip


def _measure_apart(host: Host, file: Path, due: Iterable[tuple[str, int, str]]) -> None:
    """Measure what is missing of point, stage and option of the rank, each with its point's own setting."""
    rows = rows_of(file)
    for name, stage, option in due:
        key, value = option.split("=", 1)
        if any((row["point"], row["stage"], row[key]) == (name, stage, value) for row in rows):
            continue
        point = next(points(host, [name]))
        row = measured(point, Row(name, point.spec.recompute.text, stage, 0), option, busy=file == NATIVE_FILE)
        narrate(f"{name} stage {stage}, {option}: {row.failure or row.peak_reserved_bytes}")
        kept = ("point", "setting", "stage", "peak_allocated_bytes", "peak_reserved_bytes", "peak_reserved_late_bytes",
                "failure", "seconds", "versions")  # fmt: skip
        rows.append({each: asdict(row)[each] for each in kept} | {key: value})
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, json.dumps({"rows": rows}, indent=1) + "\n")


def read(name: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows that a point's file has, by setting and stage."""
    return {(row["setting"], row["stage"]): row for row in rows_of(FOLDER / f"{name}.json")}


def measure(host: Host, names: Sequence[str]) -> None:
    """Measure what is missing, two ranks at once; every row is kept as it comes. ``uneven`` and ``native`` name those apart."""
    sys.path.append(str(Path(__file__).parents[2]))
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not names or "uneven" in names:
        _measure_apart(host, UNEVEN_FILE, ((name, stage, f"routing={tokens}") for name, stage, tokens in UNEVEN))
    if not names or "native" in names:
        _measure_apart(host, NATIVE_FILE, ((name, stage, _WITHOUT_SEGMENTS) for name, stage in NATIVE))
    chosen = list(points(host, names))
    in_full = [each for each in chosen if each.name in IN_FULL]
    for number, point in enumerate([*chosen, *in_full]):
        rows = read(point.name)
        try:
            wanted = [
                row
                for setting in planned(point, {name for name, _ in rows}, only_own=number < len(chosen))
                for row in due(point, setting, {stage for name, stage in rows if name == setting.recompute})
            ]
        except BadRequestError as error:  # no rank runs what no plan is made for
            narrate(f"{point.name}: {error.message}")
            continue
        rows = {(row.setting, row.stage): asdict(row) | _as_kept(row, rows) for row in wanted}
        missing = [row for row in wanted if rows[row.setting, row.stage]["peak_allocated_bytes"] is None]
        narrate(f"{point.name}: {len(missing)} of {len(wanted)} ranks to run")
        with ThreadPoolExecutor(2) as pool:
            for row in pool.map(lambda row, of=point: measured(of, row), missing):
                rows[row.setting, row.stage] = asdict(row)
                narrate(f"{row.setting} stage {row.stage}: {_brief(row)}")
                _write(point.name, rows)
        _write(point.name, rows)


def _as_kept(row: Row, kept: dict[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    """What was measured of the same job, without its prediction."""
    found = kept.get((row.setting, row.stage), {})
    same = found.get("num_microbatches") == row.num_microbatches and tuple(found.get("left_out", ())) == row.left_out
    return {name: value for name, value in found.items() if not name.startswith("predicted_")} if same else {}


def _brief(row: Row) -> str:
    if row.peak_allocated_bytes is None:
        return str(row.failure)
    return f"{row.peak_allocated_bytes / 2**30:.2f} GiB, {(row.predicted_peak_bytes - row.peak_allocated_bytes) / 2**20:+.0f} MiB predicted"


def _write(name: str, rows: dict[tuple[str, int], dict[str, Any]]) -> None:
    document = {
        "point": name,
        "seconds": round(sum(row["seconds"] for row in rows.values()), 1),
        "rows": list(rows.values()),
    }
    write_atomically(FOLDER / f"{name}.json", json.dumps(document, indent=1) + "\n")
