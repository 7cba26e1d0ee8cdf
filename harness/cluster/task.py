"""The cluster starts this once on every node of a job. It does the runs of the job, one after the other."""

import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from harness.cluster.collecting import drop_unstarted
from harness.cluster.node import BEGIN_PATIENCE_S, NodeOfJob, Place, place_of
from harness.errors import ExitCode, HarnessError, RunFailedError
from harness.judge.gate import status_exit_code
from harness.launch.cluster_job import warning_s
from harness.launch.crew import interruption
from harness.launch.environment import this_host
from harness.launch.plan import free_port
from harness.launch.warm import WarmParents
from harness.records.collect import LaunchOutcome, outcome_of_node
from harness.records.folders import closed_to_others
from harness.records.job import (
    JobAttempt,
    JobRecord,
    JobRun,
    attempt_files,
    attempt_path,
    attempts_of,
    read_job,
    time_limit_note,
)
from harness.records.store import RECORD, write_atomically, write_once
from harness.records.strict_json import read_document
from harness.show.page import AMOUNT
from harness.show.terminal import narrate
from harness.units import counted, utc_now

Part = Callable[["NodeOfJob", JobAttempt], ExitCode]
"""This node's part in an attempt at the job."""


def main(argv: Sequence[str] | None = None, part: Part | None = None) -> int:
    """Do this node's part of the job. A pod gets 0, lest it start again: how the run ended is in its record."""
    parser = ArgumentParser(prog="cluster_task", description=__doc__)
    parser.add_argument("--job_dir", type=Path, required=True)
    parser.add_argument("--master_addr", help="the first node of the job; default: PET_MASTER_ADDR")
    asked = parser.parse_args(argv)
    # When this node is done, srun may kill it because of another node's code. That must not become the job's exit code.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    AMOUNT.set("all")  # nobody sees a bar in the job's log
    try:
        with closed_to_others():
            code = run_task(asked.job_dir, asked.master_addr, part or _runs)
    except HarnessError as error:
        narrate(f"error: {error}")
        code = error.exit_code
    return 0 if attempt_files(asked.job_dir) and not read_job(asked.job_dir).options.serves_nodes else int(code)


def run_task(job_dir: Path, master_addr: str | None, part: Part) -> ExitCode:
    """Do the part of this node in the job of ``job_dir``. RunFailedError if the attempt is refused."""
    host, job = this_host(), read_job(job_dir)
    place = place_of(job, host.shell)
    with interruption() as caught:
        _heed_time_limit(job)
        node = NodeOfJob(job, place, master_addr or place.head or "", host, caught)
        if place.node_rank == 0:
            attempt = _begin(node)
        else:
            path = attempt_path(job_dir, place.job_id, place.restart_count)
            node.await_(path.is_file, BEGIN_PATIENCE_S, f"{path}: node 0 did not start")
            attempt = read_document(path, JobAttempt)
        if attempt.refused:
            raise RunFailedError("; ".join(attempt.refused), remedy="nothing was run or overwritten; submit a new job")
        if place.nnodes != job.nnodes:
            given = f"{job.options.cluster} gave {place.nnodes} nodes ({place.nodes})"
            why = f"{given}, but the job was planned for {job.nnodes}"
            if place.node_rank == 0 and job.runs:
                node.refuse(job.runs[0], why)
            raise RunFailedError(why)
        return part(node, attempt)


def _heed_time_limit(job: JobRecord) -> None:
    """Ask this process to end before the time limit, and end it there, where the cluster does not: Slurm does both."""
    if job.options.serves_nodes:
        return
    note, limit = time_limit_note(Path(job.job_dir)), job.options.time_limit_minutes

    def alarm(*_: object) -> None:
        note.touch()
        signal.signal(signal.SIGALRM, lambda *_: os._exit(ExitCode.RUN_FAILED))
        signal.alarm(warning_s(limit))
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGALRM, alarm)
    signal.alarm(limit * 60 - warning_s(limit))


def _begin(node: NodeOfJob) -> JobAttempt:
    """On the first node, record that this attempt starts, or why it runs nothing."""
    job, place = node.job, node.place
    attempt = JobAttempt(
        job_id=place.job_id,
        restart_count=place.restart_count,
        nodes=place.nodes,
        hostname=node.host.hostname,
        started_at=utc_now(),
        refused=_reasons_to_refuse(job, place),
        master_port=free_port(),
    )
    path = attempt_path(Path(job.job_dir), place.job_id, place.restart_count)
    path.parent.mkdir(mode=0o750, exist_ok=True)
    write_once(path, attempt)
    due = next((Path(run.run_dir) for run in job.runs if not (Path(run.run_dir) / RECORD).exists()), None)
    if place.restart_count and due and not job.options.serves_nodes:  # other pods would wait for this node's ranks
        (due / "ranks").mkdir(mode=0o750, parents=True, exist_ok=True)
        write_atomically(outcome_of_node(due, 0), LaunchOutcome(status="failed", reason="; ".join(attempt.refused)))
    return attempt


def _reasons_to_refuse(job: JobRecord, place: Place) -> tuple[str, ...]:
    """A run is measured once, whole, in its own folder. A second attempt needs a new job."""
    restarted = f"{job.options.cluster} restarted job {place.job_id} ({counted(place.restart_count, 'time')})"
    begun = [attempt for attempt in attempts_of(Path(job.job_dir)) if not attempt.refused]
    folders = (Path(run.run_dir) for run in job.runs)
    held = [each for each in folders if (each / RECORD).exists() or any((each / "ranks").glob("*"))]
    return (
        *[f"{restarted} on {place.nodes}: mbr-perf does not continue half a run"] * (place.restart_count > 0),
        *(f"job {each.job_id} already ran it at {each.started_at} on {each.nodes}" for each in begun),
        *(f"{folder} already holds a run" for folder in held),
    )


def _runs(node: NodeOfJob, _: JobAttempt) -> ExitCode:
    """Do the runs until one fails or a signal comes. Only the first node returns their exit code."""
    runs, leads = node.job.runs, node.place.node_rank == 0
    code = ExitCode.OK
    with ExitStack() as stack:
        if len(runs) > 1 and not node.job.launch.replay_from:
            node = replace(node, parents=stack.enter_context(WarmParents()))
        for number, run in enumerate(runs):
            code = _run(node, run)
            if code is not ExitCode.OK:
                if leads:
                    drop_unstarted(runs[number + 1 :])
                break
    return code if leads else ExitCode.OK


def _run(node: NodeOfJob, run: JobRun) -> ExitCode:
    if node.caught.signal:
        return status_exit_code("interrupted", node.caught.signal)
    record = node.run(run)
    narrate(f"{run.run_id}: {record.status}{': ' + record.failure if record.failure else ''}")
    return status_exit_code(record.status, node.caught.signal or signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
