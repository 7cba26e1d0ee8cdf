"""The JSON documents of ``--json``: the keys are part of the contract and only ever grow."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from harness.analysis.gate import Comparison, Finding
from harness.analysis.imported.figures import own_throughput
from harness.analysis.metrics import PEAK_METRICS, SUMMARY_METRICS, Metrics
from harness.analysis.oom.of_run import oom_of_run
from harness.analysis.outcome import Outcome
from harness.errors import BadRequestError, ExitCode
from harness.records.golden import GoldenRecord
from harness.records.goldens import GoldenChange
from harness.records.run import RunRecord

SCHEMA_VERSION = 1

Document = dict[str, object]


def text(document: Mapping[str, object]) -> str:
    """The document as it is printed: strict JSON, which has no NaN."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def run_document(
    record: RunRecord,
    metrics: Metrics,
    comparison: Comparison,
    verdict: tuple[Outcome, ExitCode],
    run_dir: Path,
    *,
    prediction: Mapping[str, object] | None = None,
) -> Document:
    """``mbr-perf run --json``."""
    outcome, exit_code = verdict
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": record.run_id,
        "outcome": outcome,
        "exit_code": int(exit_code),
        "status": record.status,
        "failure": record.failure,
        "out_of_memory": _out_of_memory(record),
        "findings": [finding.model_dump(mode="json") for finding in record.findings],
        "suspect": list(record.suspect),
        "notes": list(record.notes),
        "run_dir": str(run_dir),
        "fingerprint": record.fingerprint,
        "spec": record.spec.model_dump(mode="json"),
        "sources": record.sources,
        "effective": record.effective.model_dump(mode="json"),
        "metrics": metrics_document(metrics),
        "ranks": [rank.model_dump(mode="json") for rank in record.ranks],
        **_comparison_fields(comparison),
        "prediction": prediction,
        "imported": _imported(record, metrics),
        "provenance": record.provenance.model_dump(mode="json"),
    }


def _out_of_memory(record: RunRecord) -> Document | None:
    oom = oom_of_run(record) if record.status == "oom" else None
    if oom is None:
        return None
    verdict = oom.verdict
    return {
        "rank": oom.rank,
        "class": verdict.oom_class,
        "confidence": verdict.confidence,
        "reason": verdict.reason,
        "next_experiment": verdict.next_experiment,
        "figures": asdict(verdict.figures) if verdict.figures else None,
    }


def compare_document(
    records: tuple[RunRecord, ...], metrics: Metrics, comparison: Comparison, verdict: tuple[Outcome, ExitCode]
) -> Document:
    """``mbr-perf compare --json``."""
    outcome, exit_code = verdict
    return {
        "schema_version": SCHEMA_VERSION,
        "outcome": outcome,
        "exit_code": int(exit_code),
        "run_ids": [record.run_id for record in records],
        "fingerprint": records[0].fingerprint,
        "metrics": metrics_document(metrics),
        **_comparison_fields(comparison),
    }


def metrics_document(metrics: Metrics) -> Document:
    """The figures; null where there is none, with the reason under ``problems``."""
    fields: Document = asdict(metrics)
    ordered = (*SUMMARY_METRICS, *PEAK_METRICS)
    return {**{name: fields[name] for name in ordered}, **{k: v for k, v in fields.items() if k not in ordered}}


def golden_document(path: Path, golden: GoldenRecord, changes: tuple[GoldenChange, ...] = ()) -> Document:
    """One golden, and what its promotion changed."""
    return {
        "schema_version": SCHEMA_VERSION,
        "path": str(path),
        "golden": golden.model_dump(mode="json"),
        "changes": [asdict(change) for change in changes],
    }


def goldens_document(goldens: Mapping[Path, GoldenRecord], unread: Mapping[Path, BadRequestError]) -> Document:
    """All goldens of a folder, and the files that cannot be read."""
    listed = [{"path": str(path), "golden": golden.model_dump(mode="json")} for path, golden in goldens.items()]
    damaged = [{"path": str(path), "message": error.message} for path, error in unread.items()]
    return {"schema_version": SCHEMA_VERSION, "goldens": listed, "damaged": damaged}


def _imported(record: RunRecord, metrics: Metrics) -> Document | None:
    """The log that a run was read from, with its own throughput; null for a run of our own."""
    if record.imported is None:
        return None
    own = own_throughput(record, metrics)
    return record.imported.model_dump(mode="json", exclude={"throughput"}) | {
        "own_throughput": asdict(own) if own else None
    }


def _comparison_fields(comparison: Comparison) -> Document:
    golden = comparison.golden
    return {
        "comparison": [_finding(finding) for finding in comparison.findings],
        "golden": None
        if golden is None
        else {
            "path": comparison.golden_path,
            "kind": golden.kind,
            "num_runs": golden.num_runs,
            "promoted_at": golden.promoted_at,
        },
        "differences": [asdict(difference) for difference in comparison.likeness.differences],
        "caveats": list(comparison.likeness.caveats),
        "note": comparison.note or None,
    }


def _finding(finding: Finding) -> Document:
    return asdict(finding) | {"verdict": finding.verdict.value, "reason": finding.reason or None}
