"""Launches one run on this machine, after it checks that the folder and the GPUs are free."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from harness.judge.readings import with_clocks
from harness.launch.heartbeats import Progress
from harness.launch.plan import Nodes
from harness.launch.processes import claim
from harness.launch.replay import ReplayPlan, execute
from harness.launch.supervise import ended_badly
from harness.launch.warm import WarmParents
from harness.measure.bridge import keep_config
from harness.measure.prediction import KeptPrediction, predicted_first
from harness.measure.provenance import Began, provenance
from harness.measure.ranks import read_back, status_of, suspicions
from harness.measure.understanding import Understood
from harness.records.collect import RESTARTED, LaunchOutcome, collect, outcome_of_node
from harness.records.disk import disk_faults_reported
from harness.records.rank import placed
from harness.records.redact import redact
from harness.records.run import REPLAYED, RunRecord, no_time
from harness.records.store import write_atomically, write_record
from harness.units import utc_now

PATIENCE_S = 60.0
_POLL_S = 0.2


def wait_for_other_nodes(run_dir: Path, nodes: Nodes, patience_s: float = PATIENCE_S) -> tuple[str, ...]:
    """Wait for the outcome, the last file, of every other node. Return notes on nodes that wrote none."""
    others = [rank for rank in range(nodes.nnodes) if rank != nodes.node_rank]
    outcomes = {rank: outcome_of_node(run_dir, rank) for rank in others}
    deadline = time.monotonic() + patience_s
    while (missing := [rank for rank, path in outcomes.items() if not path.exists()]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return tuple(
        f"node {rank} wrote no outcome within {patience_s:g} s; the records of its ranks may be incomplete"
        for rank in missing
    )


Following = AbstractContextManager[Callable[[Progress], None]]


@dataclass(frozen=True)
class Ran:
    """One launch: its committed record, its folder, and the signal that interrupted it."""

    record: RunRecord
    run_dir: Path
    signal: int | None


def launched(
    understood: Understood,
    run_id: str,
    *,
    progress: Following,
    kept: KeptPrediction | None = None,
    before_start: Callable[[KeptPrediction], None] = lambda _: None,
    parents: WarmParents | None = None,
    amended: Callable[[RunRecord], RunRecord] = lambda record: record,
) -> Ran:
    """Launch once; the first node commits the record, which ``amended`` completes. ``kept``: the plan's prediction."""
    began, run_dir, nodes = (utc_now(), time.monotonic()), understood.launch.run_dir, understood.launch.nodes
    number = f"_node_{nodes.node_rank:03d}" if nodes.node_rank else ""  # nodes share the folder
    with disk_faults_reported(run_dir):
        write_atomically(run_dir / "spec.json", understood.spec)
        if understood.spec.engine is not None:
            keep_config(understood.spec.engine, run_dir)
        write_atomically(run_dir / f"plan{number}.txt", redact(understood.plan.render()))
        if nodes.node_rank == 0:
            claim(run_dir)
        made = predicted_first(understood, kept)
        before_start(made)
        with progress as on_progress:
            outcome = execute(understood.plan, on_progress=on_progress, parents=parents)
        late = wait_for_other_nodes(run_dir, nodes) if nodes.node_rank == 0 else ()
        record = amended(_with_restart(run_dir, _record(understood, run_id, began, outcome, late, made)))
        if nodes.node_rank == 0:
            write_record(run_dir, record)
    return Ran(record, run_dir, outcome.signal)


def _with_restart(run_dir: Path, record: RunRecord) -> RunRecord:
    """Let the failure begin with the node that was started again during the run, whose loss the ranks only noticed."""
    ends = (ended_badly(path) for path in sorted(run_dir.glob("ranks/outcome_node_*.json")))
    again = next((end.reason for end in ends if end and end.reason and RESTARTED in end.reason), None)
    if again is None or record.status != "failed" or again in (record.failure or ""):
        return record
    return record.model_copy(update={"failure": f"{again}; {record.failure}"})


def _record(
    understood: Understood,
    run_id: str,
    began: Began,
    outcome: LaunchOutcome,
    late_nodes: tuple[str, ...],
    kept: KeptPrediction,
) -> RunRecord:
    plan, spec = understood.plan, understood.spec
    collected = collect(understood.launch.run_dir, spec.num_gpus)
    ranks = with_clocks(placed(collected.ranks, spec), collected.nodes, spec.measure.window)
    status, failure = status_of(outcome, ranks)
    unmeasured = no_time(ranks)
    if isinstance(plan, ReplayPlan):
        unmeasured = redact(f"{REPLAYED}{plan.source}: nothing was measured")
    notes = (*understood.notes, *([unmeasured] if unmeasured else []), *outcome.notes, *late_nodes, *collected.notes)
    return RunRecord(
        run_id=run_id,
        status=status,
        spec=spec,
        sources=understood.sources,
        fingerprint=spec.fingerprint,
        effective=read_back(understood.effective, spec, ranks),
        ranks=ranks,
        nodes=collected.nodes,
        failure=failure,
        findings=understood.findings,
        suspect=suspicions(spec, understood.effective, collected, ranks),
        notes=notes,
        prediction=kept.prediction,
        no_prediction=kept.reason,
        provenance=provenance(began, plan, ranks, collected.nodes, understood.host),
    )
