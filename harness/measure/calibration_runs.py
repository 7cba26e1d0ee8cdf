"""Calibrations: made from recorded runs, kept by GPU type, used by predictions."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path

from harness.errors import BadRequestError, Problems, nearest, os_errors_reported
from harness.experiment.effective import NO_SOFTWARE
from harness.experiment.gpu import GPUS
from harness.experiment.software import Software
from harness.judge import readings
from harness.judge.derive import derive
from harness.judge.plausible import doubts_of
from harness.launch.environment import Host
from harness.predict.calibration import LEAST_SPREAD, Observation, fit, left_out
from harness.predict.device import device_needs
from harness.predict.exact import planner_fingerprint, traced_with
from harness.predict.experts import at_pace
from harness.predict.model_states import adam_of
from harness.predict.prediction import BOUNDS, BUILT_IN, EFFICIENCIES, HOST_SECONDS, calibrated
from harness.predict.search import Traces
from harness.predict.stages import Composer
from harness.predict.trace_book import MissingTraceError
from harness.predict.tracer import TraceKind, Tracing, trace_cache, trace_kind
from harness.records.calibration import Calibration, Probe, RunErrors
from harness.records.folders import calibration_path
from harness.records.rank import SCRIPTED
from harness.records.run import RunRecord
from harness.records.store import RECORD, read_run, write_atomically
from harness.records.strict_json import read_document
from harness.records.trace import TraceCase
from harness.units import grouped, utc_now


def calibrate(
    given: Sequence[str], host: Host, out: Path | None = None, *, use_cache: bool = True
) -> tuple[Calibration, Path]:
    """Fit the constants to runs and at most one probe, and write them. BadRequestError before anything is written."""
    paths = [each for each in given if Path(each).is_file() and Path(each).name != RECORD]
    records, probe = _records([each for each in given if each not in paths]), _read_probe(paths)
    gpu = _one_gpu(records, probe)
    probed = _probed(paths[0], probe) if probe else {}
    traces = Tracing(host, trace_cache(host.shell) if use_cache else None).by_kind(_needed(records))
    observed = [(record, _observation(record, traces)) for record in records]
    refused = {record.run_id: why for record, why in observed if isinstance(why, str)}
    taken = [(record, run) for record, run in observed if isinstance(run, Observation)]
    calibration = _calibration(gpu, taken, refused, probed)
    _require_any(calibration)
    path = out or calibration_path(gpu)
    with os_errors_reported(f"{path}: cannot write the calibration", "name a writable file with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, calibration)
    return calibration, path


def _require_any(calibration: Calibration) -> None:
    if any(constant.value is not None for constant in calibration.constants):
        return
    reasons = {**calibration.refused, **{constant.name: constant.reason for constant in calibration.constants}}
    lines = [f"{name}: {why}" for name, why in reasons.items()]
    raise BadRequestError("\n  ".join(["these runs determine no constant", *lines]))


def _records(references: Sequence[str]) -> list[RunRecord]:
    records, problems = dict[str, RunRecord](), Problems()
    for reference in references:
        folder = Path(reference)
        within = folder.is_dir() and not (folder / RECORD).exists()
        paths: list[str | Path] = sorted(folder.rglob(RECORD)) if within else [reference]
        if not paths:
            problems.add(f"--calibrate {reference}: no {RECORD} in it or below", _WANTED)
        for path in paths:
            with problems.collecting():
                record = read_run(path)
                records[record.run_id] = record
    problems.raise_if_any()
    return list(records.values())


_WANTED = "name a file that mbr-perf probe wrote, or runs: folders, ids or files record.json"


def _read_probe(paths: Sequence[str]) -> Probe | None:
    path, *others = paths or [""]
    if others:
        names = ", ".join(paths)
        raise BadRequestError(f"--calibrate: several files ({names})", remedy="name one file of mbr-perf probe")
    if not path:
        return None
    try:
        found = read_document(Path(path), Probe)
    except BadRequestError as error:
        message = f"--calibrate {path} is no file of mbr-perf probe: {error.message}"
        raise BadRequestError(message, remedy=_WANTED) from error
    if found.gpu not in GPUS:
        fix = f"{nearest(found.gpu, GPUS)}; a file of a newer mbr-perf needs that version"
        raise BadRequestError(f"--calibrate {path}: gpu {found.gpu!r}: no such GPU type", remedy=fix)
    return found


def _one_gpu(records: Sequence[RunRecord], probe: Probe | None) -> str:
    of_probe = [(probe.gpu, "the probe")] if probe else []
    by_gpu = grouped([*of_probe, *((record.spec.gpu, record.run_id) for record in records)])
    if len(by_gpu) > 1:
        found = "; ".join(f"{gpu}: {', '.join(runs)}" for gpu, runs in by_gpu.items())
        raise BadRequestError(f"--calibrate: runs of several GPU types: {found}", remedy="calibrate one type at a time")
    return next(iter(by_gpu))


def _needed(records: Sequence[RunRecord]) -> Iterator[tuple[TraceKind, Sequence[TraceCase]]]:
    for record in (record for record in records if not _unfit(record)):
        yield trace_kind(record.spec), _composer(record).cases()


def _observation(record: RunRecord, traced: Mapping[TraceKind, Traces]) -> Observation | str:
    why = _unfit(record)
    if why:
        return why
    spec, kind = record.spec, trace_kind(record.spec)
    composer, traces = _composer(record), traced[kind]
    try:
        costs = composer.chunk_costs(traces.even)
        busiest = at_pace(spec, costs, composer.chunk_costs(traces.uneven)) if traces.uneven else None
    except MissingTraceError:
        return traces.why_missing(composer)
    peaks = ((rank.coordinates.pp, readings.allocated(rank)) for rank in record.ranks)
    by_stage = ((stage, size) for stage, size in peaks if size is not None)
    metrics = derive(record)
    timed = metrics.step_time_s and "step_time_s" not in metrics.problems and not spec.gpu_type.is_cpu
    return Observation(
        name=record.run_id,
        spec=spec,
        costs=costs,
        peaks={stage: max(sizes) for stage, sizes in grouped(by_stage).items()},
        outside=_outside(record),
        step_s=metrics.step_time_s.median if metrics.step_time_s and timed else None,
        busiest=busiest,
        adam=adam_of(spec, _software(record)),
    )


def _composer(record: RunRecord) -> Composer:
    return Composer(record.spec, trace_kind(record.spec)[0], _software(record) or NO_SOFTWARE)


def _software(record: RunRecord) -> Software | None:
    versions = next((rank.versions for rank in record.ranks if rank.versions), None)
    if versions is None:
        return None
    return Software(megatron_core=versions.get("megatron-core"), transformer_engine=versions.get("transformer-engine"))


def _unfit(record: RunRecord) -> str:
    if record.status != "ok":
        return f"the run ended as {record.status}"
    if record.unmeasured:
        return record.unmeasured[0]
    if doubts := doubts_of(record, derive(record)):
        return doubts[0]
    if record.spec.cuda_graph.impl != "none":
        return "the planner does not model CUDA graphs, so the error has other causes than the constants"
    return ""


def _outside(record: RunRecord) -> tuple[int, ...]:
    """Memory outside the allocator on each rank, without what the planner models: NCCL, user and dispatcher buffers."""
    used_of = readings.device_used(record.nodes)
    pairs = ((used_of(rank), readings.reserved(rank)) for rank in record.ranks)
    modelled = device_needs(record.spec, context_bytes=0).outside_bytes
    return tuple(used - reserved - modelled for used, reserved in pairs if used is not None and reserved is not None)


def _probed(path: str, probe: Probe) -> dict[str, float]:
    """Return the constants of a probe. BadRequestError if it measured no GPU, or a value is impossible."""
    if not probe.constants or probe.device.startswith(SCRIPTED):
        raise BadRequestError(f"{path}: {probe.device} has no rates of a GPU", remedy="run mbr-perf probe on a GPU")
    bounds = {name: BOUNDS[name] for name in (*EFFICIENCIES, *HOST_SECONDS, "outside_allocator_bytes")}
    for name, value in probe.constants.items():
        low, high = bounds.get(name, (inf, inf))
        if not low <= value <= high:
            known = f"from {low:g} to {high:g}" if name in bounds else f"known: {', '.join(bounds)}"
            raise BadRequestError(f"{path}: {name} {value:g}: {known}", remedy="run mbr-perf probe again")
    return probe.constants


def _calibration(
    gpu: str, taken: Sequence[tuple[RunRecord, Observation]], refused: dict[str, str], probed: dict[str, float]
) -> Calibration:
    observations = [run for _, run in taken]
    constants = fit(gpu, observations, probed)
    after = calibrated(constants)
    rows = tuple(
        RunErrors(
            run_id=record.run_id,
            recompute=record.spec.recompute.text,
            fingerprint=record.fingerprint,
            peak_before=run.peak_error(BUILT_IN),
            peak_after=run.peak_error(after),
            peak_left_out=run.peak_error(without) if without else None,
            time_before=run.time_error(BUILT_IN),
            time_after=run.time_error(after),
            time_left_out=run.time_error(without) if without else None,
        )
        for (record, run), without in zip(taken, left_out(gpu, observations, probed), strict=True)
    )
    errors = [abs(row.time_left_out) for row in rows if row.time_left_out is not None]
    return Calibration(
        gpu=gpu,
        constants=constants,
        runs=rows,
        time_spread=max([LEAST_SPREAD, *errors]) if errors else None,
        refused=refused,
        made_at=utc_now(),
        planner=planner_fingerprint(),
        traced_with=traced_with(),
        versions=_versions([record for record, _ in taken]),
    )


def _versions(records: Sequence[RunRecord]) -> dict[str, tuple[str, ...]]:
    every = (each for record in records for each in record.provenance.versions.items())
    found = grouped((name, version) for name, version in every if version)
    return {name: tuple(sorted(set(versions))) for name, versions in sorted(found.items())}
