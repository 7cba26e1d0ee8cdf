"""``scripts/accuracy --traces``: traces every shipped point and writes the files that travel with the package."""

import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import event_cases, every_case
from packing import packed, packed_events

from harness.errors import BadRequestError, RunFailedError
from harness.experiment.effective import Implementation, settled_implementation
from harness.experiment.experiment import CudaGraphSpec, ExperimentSpec
from harness.experiment.layout_text import LayoutError
from harness.experiment.software import ASSUMED_TRANSFORMER_ENGINE, Software
from harness.launch.environment import Host
from harness.predict.assumptions import imbalance_of
from harness.predict.search import candidates
from harness.predict.shipped_traces import About, events_file, shipped_file
from harness.predict.trace_cases import CachedTrace, TraceCache
from harness.predict.tracer import Tracing, cache_folder
from harness.predict.tracer_processes import TracerProcess
from harness.records.events import ChunkEvents, EventsFile
from harness.records.store import write_atomically
from harness.records.trace import TraceCase, TraceRequest
from harness.resolve.find import all_recipe_files, recipes_dir
from harness.resolve.recipe import Recipe, Request
from harness.resolve.recipe_file import load_recipe
from harness.resolve.resolve import resolve_recipe
from harness.show.terminal import narrate

# Environments of scripts/setup, one per release of megatron-core that traces are shipped for.
ENVIRONMENTS = ("", "mcore019")
_HERE = (
    "from harness.predict.shipped_traces import events_made_here as requests, made_here as traces; "
    "print(traces().model_dump_json(), requests().model_dump_json(), sep=chr(10))"
)


def write_all(host: Host, folder: Path | None) -> Iterator[Path]:
    """Write the file of every environment, into ``folder`` instead of the place where mbr-perf looks. Yield each path."""
    for environment in ENVIRONMENTS:
        setup = ["scripts/setup", "train", *([environment] if environment else [])]
        python = subprocess.run(setup, check=True, capture_output=True, text=True).stdout.strip()
        yield from write(replace(host, python=python), folder)


def write(host: Host, folder: Path | None) -> Iterator[Path]:
    """Trace with the megatron-core of ``host.python`` and write its files: traces, and requests for memory."""
    asked = subprocess.run([host.python, "-c", _HERE], check=True, capture_output=True, text=True, env=dict(host.shell))
    about, of_requests = (About.model_validate_json(line) for line in asked.stdout.splitlines())
    yield _written(shipped_file(about.megatron_core), packed(about, traces(about, host)), folder)
    yield _written(events_file(about.megatron_core), packed_events(of_requests, requests(of_requests, host)), folder)


def _written(default: Path, content: bytes, folder: Path | None) -> Path:
    path = folder / default.name if folder else default
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


def requests(about: About, host: Host) -> Iterator[tuple[TraceCase, ChunkEvents]]:
    """Yield the requests of every case of the shipped points. Reuse those of an earlier call that was interrupted."""
    due = {
        case.key: (kind, case)
        for spec in points(about)
        for kind in [settled_implementation(spec)]
        for case in event_cases(spec, kind, Software(megatron_core=about.megatron_core))
        if not spec.gpu_type.is_cpu  # no step of a CPU is composed
    }
    yield from recorded(about, host, due)


def recorded(
    about: About, host: Host, due: Mapping[str, tuple[Implementation, TraceCase]]
) -> Iterator[tuple[TraceCase, ChunkEvents]]:
    """Yield what the due cases ask for; megatron-core refuses some."""
    cache = cache_folder(host.shell) / "requests" / f"{about.megatron_core}-{about.tracer}-{about.stand_in}"
    cache.mkdir(parents=True, exist_ok=True)
    for kind in sorted({kind for kind, _ in due.values()}):
        cases = [case for each, case in due.values() if each == kind]
        missing = [case for case in cases if not (cache / f"{case.key}.json").exists()]
        for at in range(0, len(missing), _AT_ONCE):
            narrate(f"megatron-core {about.megatron_core}: {at} of {len(missing)} requests ({kind})")
            _record(TraceRequest(cases=tuple(missing[at : at + _AT_ONCE]), implementation=kind), host, cache)
        found = ((case, EventsFile.model_validate_json((cache / f"{case.key}.json").read_text())) for case in cases)
        yield from ((case, answer.chunks[case.key]) for case, answer in found if answer.chunks)


def _record(request: TraceRequest, host: Host, cache: Path) -> None:
    """Keep each case's answer in a file."""
    answer = EventsFile.model_validate_json(TracerProcess(host, 7200.0).answer(request.model_dump_json(), "--events"))
    for key in (case.key for case in request.cases):
        parts = {name: {key: found[key]} if key in found else {}
                 for name, found in (("chunks", answer.chunks), ("refused", answer.refused))}  # fmt: skip
        write_atomically(cache / f"{key}.json", answer.model_copy(update=parts).model_dump_json())


def traces(about: About, host: Host) -> Iterator[tuple[TraceCase, float, CachedTrace]]:
    """Yield every trace of every shipped point. Reuse the traces of an earlier call that was interrupted."""
    name = f"{about.megatron_core}-{about.torch}-{about.tracer}-{about.stand_in}-{about.layers}"
    cache = TraceCache(cache_folder(host.shell) / "traces" / name)
    due = wanted(about)
    for at in range(0, len(due), _AT_ONCE):
        narrate(f"megatron-core {about.megatron_core}: {at} of {len(due)} traces")
        yield from _traced(due[at : at + _AT_ONCE], Tracing(host, cache, timeout_s=7200.0, reads_shipped=False))


# Cases of one start of the tracers. An interrupted call loses at most so many.
_AT_ONCE = 400
Due = tuple[Implementation, float, TraceCase]


def wanted(about: About) -> list[Due]:
    """Return every trace that the shipped points need, once: implementation, imbalance and case."""
    due: dict[tuple[str, float], Due] = {}
    for spec in points(about):
        implementation, imbalance = settled_implementation(spec), imbalance_of(spec)
        for case in every_case(spec, implementation, Software(megatron_core=about.megatron_core)):
            due[case.key, 1.0] = implementation, 1.0, case
            if case.has_experts:
                due[case.key, imbalance] = implementation, imbalance, case
    return sorted(due.values(), key=lambda each: each[:2])


def _traced(due: list[Due], tracing: Tracing) -> Iterator[tuple[TraceCase, float, CachedTrace]]:
    assert tracing.cache is not None
    for kind in sorted({each[:2] for each in due}):
        cases = tuple(case for *its, case in due if tuple(its) == kind)
        lost = tracing.traces(cases, kind[0], imbalance=kind[1]).refused
        for case in cases:
            trace = tracing.cache.read(case.key, kind[1])
            if trace is None:
                raise RunFailedError(
                    f"{case.spec.compute_dtype} {case.layer_kind} {case.spec.recompute.text}: {lost.get(case.key)}"
                )
            yield case, kind[1], trace


def points(about: About) -> Iterator[ExperimentSpec]:
    """Yield every shipped point for which a plan has a legal setting, with CUDA graphs or without them."""
    software = Software(megatron_core=about.megatron_core, transformer_engine=ASSUMED_TRANSFORMER_ENGINE)
    for recipe, asked in shipped():
        try:
            spec = resolve_recipe(recipe, Request(**asked)).spec
        except BadRequestError:  # points that were published and cannot run
            continue
        every = (spec, spec.model_copy(update={"cuda_graph": CudaGraphSpec()}))
        is_traced = not (spec.peft and spec.gpu_type.is_cpu)  # else when asked for: not every setting can be
        if is_traced and any(_is_plannable(each, software) for each in every):
            yield spec


def shipped() -> Iterator[tuple[Recipe, dict[str, Any]]]:
    """Yield every point of every shipped recipe as the fields of its request."""
    for file in all_recipe_files(recipes_dir()):
        recipe = load_recipe(file.path, file.label)
        for key in (point.key for point in recipe.points):
            yield recipe, {
                "model_recipe_name": recipe.header.name, "gpu": key.gpu, "task": key.task, "num_gpus": key.num_gpus,
                "compute_dtype": key.compute_dtype, "variant": key.variant,
            }  # fmt: skip


def h100_points(names: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the request of every shipped H100 point, or of those named."""
    for _, asked in shipped():
        parts = (asked[each] for each in ("model_recipe_name", "task", "compute_dtype", "num_gpus", "variant"))
        name = "_".join(str(each) for each in parts if each)
        if asked["gpu"] == "h100" and (not names or name in names):
            yield name, asked


def _is_plannable(spec: ExperimentSpec, software: Software) -> bool:
    implementation = settled_implementation(spec)
    try:
        return any(row.is_legal for row in candidates(spec, software, implementation).rows)
    except LayoutError:
        return False
