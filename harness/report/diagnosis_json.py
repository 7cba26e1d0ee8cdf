"""`mbr-perf diagnose --json`."""

from dataclasses import asdict

from harness.analysis.diagnosis.stages import needed_bytes, stage_of_failure, unexplained_bytes
from harness.analysis.diagnosis.values import Case, Diagnosis
from harness.errors import ExitCode
from harness.report.json import SCHEMA_VERSION, Document


def diagnosis_document(answer: Diagnosis, exit_code: ExitCode) -> Document:
    """Everything that the text says; keys only grow. Sizes are bytes."""
    case = answer.case
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": {
            "class": answer.oom_class if answer.is_conclusive else None,
            "confidence": answer.confidence if answer.is_conclusive else None,
            "reason": answer.reason,
            "is_oom": case.has_oom,
            "confirmed": answer.confirmed,
            "rank": case.failed.rank if case.failed else None,
            "place": case.failed.place or None if case.failed else None,
            "when": case.failed.when or None if case.failed else None,
            "where": case.failed.where if case.failed else None,
            "message": case.failed.message if case.failed else None,
            "request_bytes": case.verdict.request_bytes,
            "figures": asdict(case.verdict.figures) if case.verdict.figures else None,
        },
        "evidence": list(answer.evidence),
        "symptoms": [asdict(row) for row in answer.symptoms],
        "fixes": [{"text": fix.text, "command": fix.command or None} for fix in answer.fixes],
        "job": _job(case),
        "against": _job(answer.reference) if answer.reference else None,
        "expected": _expected(case),
        "exit_code": int(exit_code),
    }


def _job(case: Case) -> Document:
    return {
        "name": case.name,
        "origin": case.origin,
        "status": case.status,
        "recompute": case.spec.recompute.text if case.spec else None,
        "expandable_segments": case.expandable_segments,
        "tflops_per_gpu": case.tflops_per_gpu,
        "step_time_s": case.step_time_s,
        "peak_allocated_bytes": case.peak_bytes,
        "notes": list(case.notes),
    }


def _expected(case: Case) -> Document:
    stage = stage_of_failure(case)
    return {
        "stage": stage.model_dump(mode="json") if stage else None,
        "needed_bytes": needed_bytes(case),
        "unexplained_bytes": unexplained_bytes(case),
        "problem": case.no_prediction or None if stage is None else None,
    }
