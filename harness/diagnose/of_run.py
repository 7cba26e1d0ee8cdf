"""Makes a case of a run: the rank that failed first, and the memory of all ranks; without a record, its end."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from harness.diagnose.values import Case, FailedRank, RankFigures, Status
from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.failures.classify import Ending, classify
from harness.failures.frames import moment_in
from harness.failures.of_run import has_expandable_segments, verdict_on
from harness.failures.verdict import OomVerdict
from harness.judge.derive import derive
from harness.judge.plausible import doubts_of
from harness.judge.readings import allocated, is_victim, reserved
from harness.launch.environment import Host
from harness.launch.processes import Life, life_of
from harness.measure.ranks import first_failed, status_of
from harness.records.collect import LaunchOutcome, read_heartbeats
from harness.records.job import JobRun
from harness.records.rank import OWNER, RankRecord
from harness.records.run import RunRecord
from harness.units import first_line

_OWN_FAILURES = ("oom", "non_finite_loss", "error")
_SLURM = "Slurm: "
_SILENT = ("lost", "hang", "timeout")


def case_of_run(record: RunRecord) -> Case:
    """Return the run and how it ended, as its record says."""
    rank = first_failed(record.ranks, record.imported.failed_rank if record.imported else None)
    metrics = derive(record) if record.status == "ok" else None
    rate, time = (metrics.tflops_per_gpu, metrics.step_time_s) if metrics else (None, None)
    return Case(
        name=record.run_id,
        origin="run",
        status=record.status,
        verdict=_slurm_verdict(record, rank) or _verdict(record, rank),
        failed=_failed(rank, record) if rank else None,
        spec=record.spec,
        ranks=tuple(
            RankFigures(rank.rank, rank.coordinates.pp, allocated(rank), reserved(rank)) for rank in record.ranks
        ),
        prediction=record.prediction,
        no_prediction=record.no_prediction,
        tflops_per_gpu=rate.median if rate else None,
        step_time_s=time.median if time else None,
        has_nan=_has_nan(record),
        expandable_segments=has_expandable_segments(record),
        said=_said(record),
        sources=tuple(record.sources.items()),
        notes=doubts_of(record, metrics) if metrics else record.suspect,
        has_given_settings=record.imported is not None,
        forced=tuple(finding.id for finding in record.findings if finding.overridden),
    )


def _failed(rank: RankRecord, record: RunRecord) -> FailedRank:
    assert rank.failure is not None
    host = "" if rank.hostname == "unknown" else rank.hostname
    where = f"ranks/rank_{rank.rank:03d}.json"
    when, moment = record.when_failed(rank.failure), moment_in(rank.failure.traceback)
    return FailedRank(rank.rank, rank.failure.kind, first_line(rank.failure.message), when, where, host, moment)


def _verdict(record: RunRecord, rank: RankRecord | None) -> OomVerdict:
    if rank is not None and rank.failure is not None:
        return verdict_on(rank.failure, record)
    if record.status == "ok":
        return OomVerdict("not_oom", "high", "the run ended well")
    return classify(record.failure or "", Ending(expandable_segments=has_expandable_segments(record)))


def _slurm_verdict(record: RunRecord, rank: RankRecord | None) -> OomVerdict | None:
    if not (record.failure or "").startswith(_SLURM):
        return None
    failure = rank.failure if rank else None
    if failure is not None and failure.kind in _OWN_FAILURES and not is_victim(failure):
        return None
    found = classify(record.failure or "")
    if found.oom_class == "not_oom" and not found.advice:
        return None
    return replace(found, reason=first_line(record.failure)[:300])


def _has_nan(record: RunRecord) -> bool:
    losses = [step.loss for rank in record.ranks for step in rank.steps if step.loss is not None]
    kinds = [rank.failure.kind for rank in record.ranks if rank.failure]
    return "non_finite_loss" in kinds or not all(map(math.isfinite, losses))


def _said(record: RunRecord) -> str:
    failures = [rank.failure for rank in record.ranks if rank.failure]
    return "\n".join((record.failure or "", *(f"{each.message}\n{each.traceback or ''}" for each in failures)))


def case_of_unfinished(folder: Path, spec: ExperimentSpec, logged: Case | None, host: Host) -> Case:
    """Return an unfinished run by its ranks, then the case of its logs. BadRequestError: it has not begun."""
    from harness.batch.launches import unstarted_record  # for a run that was killed only

    has_begun = (folder / OWNER).is_file() or any((folder / "ranks").glob("rank_*"))
    if not has_begun:
        if logged is None:
            raise BadRequestError(f"{folder}: neither a record nor logs", remedy="wait until the run has begun")
        return replace(logged, name=folder.name)
    why, life = "no record was committed", life_of(folder)
    left = unstarted_record(JobRun(run_dir=str(folder), run_id=folder.name, spec=spec), why, host)
    status, failure = status_of(LaunchOutcome(status="failed", reason=why), left.ranks)
    case = case_of_run(left.model_copy(update={"status": status, "failure": failure, "no_prediction": why}))
    failures = [rank.failure for rank in left.ranks if rank.failure]
    if any(failure.kind not in _SILENT and not is_victim(failure) for failure in failures):
        return replace(case, notes=(f"No record was committed: {life.reason}.",))
    if logged is not None and (logged.has_oom or (logged.failed and logged.failed.kind != "peer")):
        return replace(logged, name=folder.name)
    ended: Status = "failed" if life.state == "dead" else "unknown"
    notes = (_least_progress(folder, left),)
    return replace(case, status=ended, verdict=_by_life(life), failed=None, said="", notes=notes)


def _least_progress(folder: Path, run: RunRecord) -> str:
    """Return how far the slowest rank came and when it last wrote; of equally slow ranks, the first to fall silent."""
    files = ((rank, folder / "ranks" / f"rank_{rank.rank:03d}.progress.jsonl") for rank in run.ranks)
    read = [(rank, read_heartbeats(file)[0]) for rank, file in files]
    rank, beats = min(read, key=lambda row: (len(row[0].steps), row[1][-1].time_s if row[1] else 0.0))
    came = f"step {rank.steps[-1].step + 1} of {run.spec.measure.max_steps}" if rank.steps else "no step"
    time = f"{datetime.fromtimestamp(beats[-1].time_s, UTC):%Y-%m-%dT%H:%M:%SZ}" if beats else "none"
    return f"Least progress: rank {rank.rank}, {came}; its last sign of life: {time}."


def _by_life(life: Life) -> OomVerdict:
    if life.state == "dead":
        return OomVerdict("killed", "high", f"mbr-perf itself was killed, and wrote no record: {life.reason}")
    said = "the run has not ended" if life.state == "alive" else "no record, and mbr-perf may still be running"
    return OomVerdict("not_oom", "low", f"{said}: {life.reason}")
