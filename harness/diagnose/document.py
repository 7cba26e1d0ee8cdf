"""JSON of a diagnosis, and of the diagnoses of a sweep's cells."""

from dataclasses import asdict, replace
from pathlib import Path

from harness.diagnose.inputs import located
from harness.diagnose.of_run import case_of_run
from harness.diagnose.of_sweep import SweepOverview, overview_of
from harness.diagnose.run import DiagnoseRequest
from harness.diagnose.stages import allocator_trial, needed_bytes, stage_of_failure, unexplained_bytes
from harness.diagnose.values import Case, Diagnosis
from harness.errors import BadRequestError, ExitCode
from harness.launch.processes import life_of
from harness.records.store import RECORD
from harness.records.sweep import SWEEP, SweepData, read_sweep, run_dir_of
from harness.showing.json import SCHEMA_VERSION, Document


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


def sweep_of(request: DiagnoseRequest) -> SweepData | None:
    """The sweep where the request names one and nothing beside it. BadRequestError for what is nowhere."""
    if len(request.paths) != 1 or request.against or request.asked is not None or request.paths[0] == "-":
        return None
    folder = located(request.paths[0], request.results_dir)
    return read_sweep(folder) if folder.is_dir() and (folder / SWEEP).is_file() else None


def sweep_overview(data: SweepData) -> SweepOverview:
    """How all of its runs ended. BadRequestError where none was started."""
    found = overview_of(data, _killed(data))
    if not found.counts:
        told = f"{data.sweep_dir}: none of its runs is there yet"
        raise BadRequestError(told, remedy=f"mbr-perf sweep --resume {data.sweep_dir}")
    return found


def as_one_failure(request: DiagnoseRequest, data: SweepData, found: SweepOverview) -> DiagnoseRequest | None:
    """What to diagnose instead: the one run that failed, or a trial of the allocator whole; None where it is listed."""
    if found.ab is not None:
        trial = allocator_trial([case_of_run(run) for cell in data.cells for run in cell.runs])
        return request if trial is not None and found.failed else None
    return replace(request, paths=(str(found.failed[0].run_dir),)) if len(found.failed) == 1 else None


def exit_code_of_overview(found: SweepOverview) -> ExitCode:
    """0 where something can be said, 6 where not."""
    return ExitCode.OK if found.is_conclusive else ExitCode.INCONCLUSIVE


def _killed(data: SweepData) -> list[tuple[Path, str, str]]:
    """Runs that were begun and never committed, and by whom."""
    found = []
    for cell in data.cells:
        for repeat in range(data.plan.repeats):
            folder = run_dir_of(data.sweep_dir, cell.planned.index, repeat)
            if (folder / "spec.json").is_file() and not (folder / RECORD).is_file():
                life = life_of(folder)
                killed = "mbr-perf was killed" if life.state == "dead" else "no record yet"
                found.append((folder, cell.planned.name, f"{killed}: {life.reason}"))
    return found
