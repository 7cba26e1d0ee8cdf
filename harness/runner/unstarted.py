"""The record of a run that was never launched: what was asked, what is known of its end, and no figures."""

from collections.abc import Iterable
from pathlib import Path

from harness.launch.environment import Host
from harness.records.collect import collect
from harness.records.job import JobRun
from harness.records.run import RunRecord
from harness.runner.placement import placed
from harness.runner.provenance import Clock, provenance
from harness.spec.effective import effective_recompute, settled_implementation
from harness.spec.rules.finding import Finding
from harness.spec.software import Software


def unstarted_record(
    run: JobRun, failure: str, *, host: Host, software: Software, findings: Iterable[Finding] = ()
) -> RunRecord:
    """A failed run with ``failure`` as its reason; its ranks are recorded as lost."""
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
        findings=tuple(findings),
        notes=(*run.notes, *collected.notes),
        no_prediction="nothing was launched",
        provenance=provenance(Clock.start(), None, ranks, collected.nodes, host),
    )
