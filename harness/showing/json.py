"""JSON documents of runs, rules and findings."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from harness.errors import BadRequestError, ExitCode
from harness.experiment.rules.rulebook import Entry
from harness.judging.gate import Comparison, Finding, Outcome
from harness.judging.imported import own_throughput
from harness.judging.metrics import PEAK_METRICS, SUMMARY_METRICS, Metrics
from harness.judging.oom.classify import oom_of_run
from harness.records.golden import GoldenRecord
from harness.records.goldens import GoldenChange
from harness.records.run import RunRecord
from harness.showing.printing import Console, plain_table, print_hanging, show

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


def rules_document(entries: Iterable[Entry]) -> Document:
    """``mbr-perf rules --json``."""
    return {"schema_version": SCHEMA_VERSION, "rules": [asdict(entry) for entry in entries]}


def print_rules(console: Console, entries: tuple[Entry, ...]) -> None:
    """One row a rule; ``<name>`` stands for a value of the request."""
    table = plain_table("Rule", "Severity", "megatron-core", "Says")
    for entry in entries:
        table.add_row(entry.id, entry.severity, entry.versions, entry.message)
    show(console, table)
    console.print(f"{len(entries)} rules. `mbr-perf rules show ID` explains one.", highlight=False)


def print_rule(console: Console, entries: tuple[Entry, ...]) -> None:
    """Print all that is known of one rule; an id may have a row per release of megatron-core."""
    for entry in entries:
        rows = (
            ("severity", entry.severity),
            ("fix", entry.fix),
            ("megatron-core", entry.mcore_text or ""),
            ("versions", entry.versions),
            ("evidence", entry.evidence),
            ("source", entry.source),
        )
        for line in (f"{entry.id}: {entry.message}", *(f"  {name}: {value}" for name, value in rows if value)):
            print_hanging(console, Text(line), 4)
