"""One run of a batch: its folder, its launch from the plan on disk, or the record that it was never launched."""

import time
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadRequestError, RunFailedError, raise_all
from harness.experiment.effective import effective_recompute, settled_implementation
from harness.experiment.rules.check import check
from harness.experiment.rules.rule import Finding
from harness.experiment.software import Software
from harness.launch.environment import Host
from harness.launch.machine import software_for
from harness.launch.plan import LaunchPlan, LaunchRequest, Nodes
from harness.launch.replay import LAUNCHERS
from harness.measure.provenance import provenance
from harness.measure.understanding import Understood, rule_problem
from harness.records.batches import BatchLaunch, PlannedEntry
from harness.records.collect import collect
from harness.records.job import JobRun
from harness.records.rank import placed
from harness.records.run import RunRecord
from harness.units import utc_now


def nodes_of(launch: BatchLaunch, node_rank: int = 0) -> Nodes:
    """Return the place of one node among those that launch every run together."""
    return Nodes(launch.nnodes, node_rank, launch.master_addr, launch.master_port)


def understood_again(
    planned: PlannedEntry | JobRun,
    request: LaunchRequest,
    software: Software,
    findings: tuple[Finding, ...] | None = None,
) -> Understood:
    """Return a planned run as `understand` does, with its errors. Without ``findings`` the rules judge it again."""
    spec, plan = request.spec, LAUNCHERS[request.settings.launcher](request)
    if findings is None:
        env = plan.variables if isinstance(plan, LaunchPlan) else None
        force = frozenset(planned.force)
        findings = check(spec, software, env=env, force=force)
        raise_all([rule_problem(finding) for finding in findings if finding.blocks])
    return Understood(
        spec=spec,
        sources=planned.sources,
        notes=planned.notes,
        findings=findings,
        effective=effective_recompute(spec, settled_implementation(spec), software),
        software=software,
        launch=request,
        plan=plan,
    )


def require_same_software(before: Mapping[str, Software], host: Host, what: str, *, measures_here: bool) -> None:
    """Raise BadRequestError that names each package that changed since the ``what`` began. ``before``: by GPU type."""
    for gpu, then in before.items():
        now = software_for(gpu, host, must_answer=measures_here)[0]
        changed = [
            f"{name} {version or 'absent'}, now {getattr(now, name) or 'absent'}"
            for name, version in vars(then).items()
            if getattr(now, name) != version
        ]
        if changed:
            problem = f"--resume: the {what} began with {'; '.join(changed)}; new runs would not be comparable"
            raise BadRequestError(problem, remedy=f"install the software it began with, or start a new {what}")


def unstarted_record(run: JobRun, failure: str, host: Host, software: Software | None = None) -> RunRecord:
    """Return the record of a run that was never launched. ``software``: None for what is installed here."""
    software = software or software_for(run.spec.gpu, host)[0]
    spec, collected = run.spec, collect(Path(run.run_dir), run.spec.num_gpus)
    ranks = placed(collected.ranks, spec)
    return RunRecord(
        run_id=run.run_id,
        status="failed",
        spec=spec,
        sources=run.sources,
        fingerprint=spec.fingerprint,
        effective=effective_recompute(spec, settled_implementation(spec), software),
        ranks=ranks,
        nodes=collected.nodes,
        failure=failure,
        notes=(*run.notes, *collected.notes),
        no_prediction="nothing was launched",
        provenance=provenance((utc_now(), time.monotonic()), None, ranks, collected.nodes, host),
    )


def fresh_folder(run_dir: Path) -> Path:
    """Make the folder anew; files of a killed attempt are moved aside. RunFailedError if it cannot be made."""
    try:
        if run_dir.exists():
            run_dir.rename(_free_name(run_dir))
        make_folder(run_dir)
    except OSError as error:
        raise RunFailedError(f"{run_dir}: cannot make the folder: {error.strerror}") from error
    return run_dir


def make_folder(run_dir: Path) -> None:
    """Make a run's folder with ``ranks`` and ``logs``. Existing files stay. OSError if it cannot be made."""
    for inner in ("ranks", "logs"):
        (run_dir / inner).mkdir(mode=0o750, parents=True, exist_ok=True)


def _free_name(run_dir: Path) -> Path:
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.incomplete-{number}")).exists():
        number += 1
    return aside
