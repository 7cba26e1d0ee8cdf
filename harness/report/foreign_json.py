"""`mbr-perf compare --log ... --json`."""

from dataclasses import asdict

from harness.analysis.foreign.values import ForeignComparison
from harness.analysis.outcome import Outcome
from harness.errors import ExitCode
from harness.records.foreign.values import ForeignLog
from harness.report.json import SCHEMA_VERSION, Document


def foreign_document(log: ForeignLog, judged: ForeignComparison | None, verdict: tuple[Outcome, ExitCode]) -> Document:
    """The keys of `compare`, with what was read of the log and the golden. Seconds, TFLOP/s/GPU and bytes."""
    outcome, exit_code = verdict
    document: Document = {
        "schema_version": SCHEMA_VERSION,
        "outcome": outcome,
        "exit_code": int(exit_code),
        "log": _log(log),
        "comparison": [],
        "golden": None,
        "window": None,
        "doubts": [log.truncated] if log.truncated else [],
        "notes": list(log.notes),
    }
    if judged is None:
        return document
    golden = judged.golden
    return document | {
        "comparison": [
            asdict(one) | {"verdict": one.verdict.value, "reason": one.reason or None}
            for one in judged.comparison.findings
        ],
        "golden": {
            "path": str(golden.path), "format": golden.format, "layout": golden.layout, "num_steps": len(golden.steps),
        },
        "window": asdict(judged.window),
        "doubts": list(judged.doubts),
        "notes": list(judged.notes),
    }  # fmt: skip


def _log(log: ForeignLog) -> Document:
    counters = ("allocated_bytes", "max_allocated_bytes", "reserved_bytes", "max_reserved_bytes", "device_used_bytes")
    worst = {name: log.worst(name) for name in counters}
    return {
        "format": log.format,
        "sources": list(log.sources),
        "first_iteration": log.iterations[0].number if log.iterations else None,
        "last_iteration": log.iterations[-1].number if log.iterations else None,
        "num_iterations": len(log.iterations),
        "total_iterations": log.total,
        "world_size": log.world_size,
        "truncated": log.truncated,
        "restarts": list(log.restarts),
        "worst_memory": {name: asdict(one) for name, one in worst.items() if one},
    }
