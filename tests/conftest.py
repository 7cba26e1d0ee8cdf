"""Builders of real specs and records that tests of several stages share."""

import os
import re
import signal
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from harness.experiment.effective import effective_recompute, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.flops import model_flops_per_step
from harness.experiment.recompute import parse_recompute
from harness.history.record import HistoryFigure, HistoryRecord
from harness.records.golden import GoldenMetric, GoldenRecord, MeasuredOn, golden_text, spec_like
from harness.records.rank import Device, Failure, LayerRecompute, MemoryRecord, RankRecord, StepRecord, coordinates
from harness.records.run import Provenance, RunRecord
from harness.records.sweep import Axis, CellData, PlannedCell, RefusedCell, SweepData, SweepPlan
from harness.units import GIB, utc_time


def pytest_configure() -> None:
    """Ctrl-C as at a terminal: a shell that starts us in the background has it ignored, by us and all that we start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")  # on a busy machine a slow example says nothing


def pytest_addoption(parser: pytest.Parser) -> None:
    """``scripts/check --slow``: also what takes long beside another test of its kind."""
    parser.addoption("--slow", action="store_true", help="also run the tests marked long")
    parser.addoption("--cuda", action="store_true", help="run the tests on scripted GPUs, and no others")
    parser.addoption("--te", default="2.11", help="transformer-engine whose Python tests/real_te runs")


_ALL_TRAIN = re.compile(r"^pytestmark = \[?pytest\.mark\.train\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave unread what only trains where no test trains: to import torch takes seconds."""
    is_left_out = config.option.markexpr.startswith("not train") and collection_path.suffix == ".py"
    return True if is_left_out and _ALL_TRAIN.search(collection_path.read_text()) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only `--slow` or `--cuda` runs. Put files with slow tests first: no process then waits long for the other."""
    on_cuda, slow = config.getoption("--cuda"), config.getoption("--slow")
    left_out = [item for item in items
                if bool(item.get_closest_marker("cuda")) != on_cuda or (item.get_closest_marker("long") and not slow)]  # fmt: skip
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    num_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    trains = {item.path for item in items if item.get_closest_marker("train")}
    items.sort(key=lambda item: (-num_slow[item.path], item.path not in trains))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Note the processor time of the test and of the processes that it waited for."""
    before = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_s", sum(os.times()[:4]) - before))


# A test over half a second is to be marked slow; processors that share their caches with other work need longer.
_CLEARLY_SLOW_S = 1.2


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests should be marked slow."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "cpu_s" and value > _CLEARLY_SLOW_S and not {"slow", "train"} & report.keywords.keys():
                terminalreporter.write_line(f"mark this test slow: {value:.1f} s of processor time: {report.nodeid}")


pytest_plugins = ["tests.commands"]

LLAMA3_70B: dict[str, Any] = {
    "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64, "num_query_groups": 8,
    "vocab_size": 128256,
}  # fmt: skip
TINY: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 224, "num_attention_heads": 4, "num_query_groups": 2,
    "vocab_size": 256,
}  # fmt: skip


def build_spec(**changes: Any) -> ExperimentSpec:
    """Llama3-70B SFT on 32 H100 as published, or the tiny model on CPU with ``gpu="cpu"``; top-level fields replaced.

    One H100 has eight of the layers and an eighth of the batch, as a single GPU can hold and compute.
    """
    on_cpu, on_one = changes.get("gpu") == "cpu", changes.get("num_gpus") == 1
    fields: dict[str, Any] = {
        "recipe": "llama3_8b" if on_cpu else "llama3_70b",
        "family": "llama",
        "task": "pretrain" if on_cpu else "sft",
        "gpu": "h100",
        "num_gpus": 2 if on_cpu else 32,
        "gpus_per_node": 8,
        "compute_dtype": "fp32" if on_cpu else "fp8_cs",
        "model": TINY if on_cpu else LLAMA3_70B | ({"num_layers": 8} if on_one else {}),
        "batch": {
            "micro_batch_size": 1,
            "global_batch_size": 4 if on_cpu or on_one else 32,
            "seq_length": 32 if on_cpu else 4096,
        },
        "recompute": parse_recompute("core_attn"),
        "measure": {"max_steps": 10 if on_cpu else 50},
    }
    if not on_cpu:
        fields["parallelism"] = {
            "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4,
            "virtual_pipeline_model_parallel_size": 5, "sequence_parallel": True,
        }  # fmt: skip
    fields |= changes
    if isinstance(fields["recompute"], str):
        fields["recompute"] = parse_recompute(fields["recompute"])
    return ExperimentSpec(**fields)


def build_steps(seconds: Iterable[float]) -> tuple[StepRecord, ...]:
    """Steps of these times, whose loss falls."""
    return tuple(StepRecord(step=i, seconds=s, loss=11.0 - i / 10) for i, s in enumerate(seconds))


def build_rank(spec: ExperimentSpec, rank: int, seconds: float | list[float] = 1.0, **changes: Any) -> RankRecord:
    """A rank that finished every step in ``seconds`` and measured memory with the pipeline's first stage highest."""
    per_step = seconds if isinstance(seconds, list) else [seconds] * spec.measure.max_steps
    stage = rank * spec.parallelism.pipeline_model_parallel_size // spec.num_gpus
    is_cpu = spec.gpu_type.is_cpu
    memory = MemoryRecord(
        meter="profiler" if is_cpu else "cuda",
        max_allocated_bytes=58_000_000_000 - stage * 1_000_000_000,
        max_reserved_bytes=None if is_cpu else 62_000_000_000 - stage * 1_000_000_000,
        max_device_used_bytes=None if is_cpu else 64_000_000_000 - stage * 1_000_000_000,
    )
    fields: dict[str, Any] = {
        "rank": rank,
        "world_size": spec.num_gpus,
        "hostname": "node0",
        "pid": 1000 + rank,
        "finished": True,
        "coordinates": coordinates(rank, spec),
        "device": Device(kind="cpu", name="A Processor")
        if is_cpu
        else Device(kind="cuda", name="NVIDIA H100 80GB HBM3"),
        "steps": build_steps(per_step),
        "memory": memory,
        "counted_flops_per_step": max(100_000_000, model_flops_per_step(spec) // spec.num_gpus)
        if is_cpu
        else 1_000_000,
    }
    return RankRecord(**fields | changes)


def layers_of(spec: ExperimentSpec, rank: int) -> LayerRecompute:
    """What ranks read back of layers that were built as asked; rank 0 has them all."""
    effective = effective_recompute(spec, settled_implementation(spec))
    if rank:
        return LayerRecompute(num_layers=0)
    return LayerRecompute(
        num_layers=spec.model.num_layers, modules=effective.modules, full_layers=effective.full_layers
    )


def record_run(run_dir: Path, spec: ExperimentSpec, ranks: list[RankRecord], failure: Failure | None = None) -> None:
    """Write what a replay reads of a run, and set the ``failure`` of its rank 0, in ``ranks``, too."""
    if failure:
        ranks[0] = ranks[0].model_copy(update={"failure": failure, "finished": False, "steps": ()})
    (run_dir / "ranks").mkdir(parents=True)
    (run_dir / "spec.json").write_text(spec.model_dump_json())
    for rank in ranks:
        (run_dir / "ranks" / f"rank_{rank.rank:03d}.json").write_text(rank.model_dump_json())


def a_minute_after(time: str) -> str:
    """The time of a run's end; the text itself if it is no time."""
    with suppress(ValueError):
        return f"{utc_time(time) + timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}"
    return time


def build_record(spec: ExperimentSpec | None = None, seconds: float | list[float] = 1.0, **changes: Any) -> RunRecord:
    """A whole, successful run of ``spec``."""
    spec = spec or build_spec()
    is_cpu = spec.gpu_type.is_cpu
    ranks = changes.pop("ranks", None)
    if ranks is None:
        ranks = tuple(build_rank(spec, rank, seconds) for rank in range(spec.num_gpus))
    steps_s = max((sum(step.seconds for step in rank.steps) for rank in ranks), default=0.0)
    given = changes.pop("provenance", {})
    start = given.get("started_at", "2026-01-02T03:04:05Z")
    provenance = {
        "started_at": start, "finished_at": a_minute_after(start), "duration_s": max(60.0, 1.1 * steps_s),
        "command": ("mbr-perf", "run"), "mbr_perf": "0.1.0", "hostname": "node0", "platform": "Linux",
        "processor": "A Processor", "device_name": None if is_cpu else "NVIDIA H100 80GB HBM3",
        "driver_version": None if is_cpu else "550.54.15",
        "versions": {"torch": "2.9.1", "megatron-core": "0.16.1", "transformer-engine": None if is_cpu else "2.11.0"},
    }  # fmt: skip
    fields: dict[str, Any] = {
        "run_id": "20260102T030405Z-llama3-0a1b2c3d",
        "status": "ok",
        "spec": spec,
        "fingerprint": spec.fingerprint,
        "effective": effective_recompute(spec, settled_implementation(spec)),
        "ranks": ranks,
        "provenance": Provenance(**provenance | given),
    }
    return RunRecord(**fields | changes)


def build_golden(record: RunRecord, metrics: dict[str, float], **changes: Any) -> GoldenRecord:
    """A measured golden of the settings and the machine of ``record`` with the given values."""
    spec, where = record.spec, record.provenance
    fields: dict[str, Any] = {
        "kind": "measured",
        "recipe": spec.recipe,
        "task": spec.task,
        "gpu": spec.gpu,
        "compute_dtype": spec.compute_dtype,
        "num_gpus": spec.num_gpus,
        "recompute": spec.recompute.text,
        "fingerprint": record.fingerprint,
        "spec": spec.identity(),
        "metrics": {name: GoldenMetric(value=value) for name, value in metrics.items()},
        "measured_on": MeasuredOn(
            gpu=spec.gpu,
            device_name=where.processor if spec.gpu_type.is_cpu else where.device_name,
            driver_version=where.driver_version,
            versions=where.versions,
        ),
        "formula_version": "model-flops-1",
        "num_runs": 1,
        "promoted_at": "2026-01-03T00:00:00Z",
        "promoted_by": "someone",
        "reason": "first value",
    }
    return GoldenRecord(**fields | changes)


def golden_of_other_lr(path: Path) -> str:
    """The text of the golden at ``path``, but of runs with a learning rate of 0.5."""
    golden = GoldenRecord.model_validate_json(path.read_text())
    spec = spec_like(golden)
    spec = spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update={"lr": 0.5})})
    return golden_text(golden.model_copy(update={"spec": spec.identity(), "fingerprint": spec.fingerprint}))


def build_cell(name: str, runs: list[RunRecord], **changes: Any) -> CellData:
    """A cell of a sweep over recompute settings that was run, or with ``fate`` and ``reason`` was not."""
    fate, reason = changes.pop("fate", "run"), changes.pop("reason", "")
    fields: dict[str, Any] = {
        "index": 0,
        "name": name,
        "changes": {"recompute": name},
        "recompute": name,
        "spec": runs[0].spec if runs else None,
    }
    if fate in ("run", "not_run"):
        planned = PlannedCell(**fields | {"spec": fields["spec"] or build_spec()} | changes)
        return CellData(planned, tuple(runs), fate, reason)
    refused = RefusedCell(**fields | {"fate": fate, "reason": reason} | changes)
    return CellData(refused, tuple(runs), fate, reason)


def build_sweep(cells: list[CellData], **changes: Any) -> SweepData:
    """A sweep of these cells, numbered in their order; the first is the control."""
    events, folder = changes.pop("events", ()), changes.pop("sweep_dir", Path("sweep"))
    numbered = tuple(
        CellData(cell.planned.model_copy(update={"index": index}), cell.runs, cell.fate, cell.reason)
        for index, cell in enumerate(cells)
    )
    fields: dict[str, Any] = {
        "sweep_id": "20260102T030405Z-llama3-0a1b2c3d",
        "title": "Recompute settings",
        "recipe": "llama3_70b",
        "gpu": "h100",
        "control": cells[0].planned.name,
        "axes": (Axis(name="recompute", values=tuple(cell.planned.recompute for cell in cells)),),
        "grid": False,
        "repeats": max([1, *(len(cell.runs) for cell in cells)]),
        "cells": tuple(cell.planned for cell in numbered),
        "capacity_bytes": 80 * GIB,
        "command": ("mbr-perf", "sweep"),
        "started_at": "2026-01-02T03:04:05Z",
        "mbr_perf": "0.1.0",
    }
    return SweepData(folder, SweepPlan(**fields | changes), numbered, tuple(events))


def build_kept(number: int = 0, tflops: float = 709.93, **changes: Any) -> HistoryRecord:
    """Run ``number`` of a case in history, one a day from the first of January on."""
    fields: dict[str, Any] = {
        "run_id": f"run{number:04d}",
        "case": "h100/llama3_70b.sft.fp8_cs.32gpu.none",
        "fingerprint": "0123456789abcdef",
        "started_at": (datetime(2026, 1, 1, 2, tzinfo=UTC) + timedelta(days=number)).isoformat(),
        "duration_s": 600.0,
        "status": "ok",
        "metrics": {
            "tflops_per_gpu": HistoryFigure(value=tflops, stdev=1.5, n=40),
            "peak_allocated_bytes": HistoryFigure(value=58e9),
        },
        "formula_version": "model-flops-1",
        "git_commit": f"{number:040x}",
        "branch": "main",
        "hostname": "node0",
        "device_name": "NVIDIA H100 80GB HBM3",
        "driver_version": "550.54.15",
        "versions": {"torch": "2.9.1", "megatron-core": "0.16.1"},
    }
    return HistoryRecord(**fields | changes)


def _giving(name: str, builder: Any) -> Any:
    """A fixture that is a builder."""
    return pytest.fixture(name=name)(lambda: builder)


_spec = _giving("make_spec", build_spec)
_rank = _giving("make_rank", build_rank)
_record = _giving("make_record", build_record)
_golden = _giving("make_golden", build_golden)
_cell = _giving("make_cell", build_cell)
_kept = _giving("make_kept", build_kept)
_sweep = _giving("make_sweep", build_sweep)


def build_runs(recompute: str, seconds: list[float], peak_gib: float, **changes: Any) -> list[RunRecord]:
    """Runs of four layers of Llama3-70B on eight GPUs: their step times, and the peak of the worst rank, the last one."""
    model = TINY if changes.get("gpu") == "cpu" else LLAMA3_70B | {"num_layers": 4}
    spec = build_spec(recompute=recompute, model=model, num_gpus=changes.pop("num_gpus", 8), parallelism={"tensor_model_parallel_size": 8},
                      batch={"micro_batch_size": 1, "global_batch_size": changes.pop("global_batch_size", 8),
                             "seq_length": changes.pop("seq_length", 4096)}, gpu=changes.pop("gpu", "h100"),
                      measure={"memory_limit_bytes": changes.pop("memory_limit_bytes", None)})  # fmt: skip
    retries = changes.pop("retries", 0)
    found = []
    for each in seconds:
        ranks = tuple(
            build_rank(spec, rank, each, memory=MemoryRecord(
                meter="cuda", max_allocated_bytes=int(max(peak_gib - (7 - rank), 0.51 * peak_gib) * GIB), num_alloc_retries=retries,
                max_reserved_bytes=int((peak_gib + 1) * GIB)))
            for rank in range(8)
        )  # fmt: skip
        found.append(build_record(spec, ranks=ranks, **changes))
    return found


_runs = _giving("runs", build_runs)
