"""A night as the judge would hand it over: every outcome, with records of real runs where there are any."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ExitCode
from harness.judge.derive import combine, derive
from harness.judge.gate import Verdict
from harness.nightly.values import CaseFinding, CaseRun, CaseVerdict, Evidence, NightVerdict
from harness.records.collect import collect
from harness.records.golden import Difference
from harness.records.metrics import METRICS
from harness.records.night import ExpectedFailureRecord, PlannedCase, RefusedCase
from harness.records.run import RunRecord
from harness.records.strict_json import read_document
from tests.conftest import build_record, build_spec
from tests.nightly.night_recordings import Stage, plan_of

DATA = Path(__file__).parents[1] / "data"
GOLDEN = "results/golden/h100/llama3_70b.sft.fp8_cs.32gpu.mlp.json"
NIGHT = "20260103T020000Z-h100_nightly-0a1b2c3d"
LASTING = "the third night that is worse by more than 2.5 %"
TORCH = Difference("torch", "2.9.1", "2.10.0", kinds=("time",), blocks=False)


def read_run(cell: str) -> RunRecord:
    """A recorded CPU run: ``000`` ran out of memory, ``001`` and ``002`` did not."""
    return read_document(DATA / "sweeps" / "cpu_oom" / "cells" / cell / "0" / "record.json", RunRecord)


def replayed(name: str, **changes: Any) -> RunRecord:
    """A run with the ranks of a recorded one."""
    gpu = "h100" if name in ("throttled", "oom") else "cpu"
    spec = build_spec(gpu=gpu, num_gpus=2, parallelism={"pipeline_model_parallel_size": 2})
    found = collect(DATA / "replay" / name, 2)
    return build_record(spec, ranks=found.ranks, nodes=found.nodes, **changes)


def build_case(name: str, records: list[RunRecord], **changes: Any) -> CaseVerdict:
    """A case with one ordinary run folder per record; ``change`` of its throughput against a golden of five runs."""
    change, golden = changes.pop("change", None), changes.pop("golden_path", GOLDEN)
    planned = {"name": name, "spec": records[0].spec if records else None, "repeats": max(1, len(records))}
    planned |= changes.pop("planned", {})
    ok = [record for record in records if record.status == "ok"]
    metrics = combine([derive(record) for record in ok or records]) if records else None
    fields: dict[str, Any] = {
        "planned": RefusedCase(**planned)
        if planned.get("refused")
        else PlannedCase(**planned | {"spec": planned["spec"] or build_spec()}),
        "outcome": "pass",
        "exit_code": ExitCode.OK,
        "reason": "",
        "findings": build_findings(metrics, change, len(ok)) if metrics and change is not None else (),
        "runs": tuple(
            CaseRun(number, "repeat", "", Path("results/nights") / NIGHT / "cases" / name / str(number), record)
            for number, record in enumerate(records)
        ),
        "counted": tuple(ok),
        "metrics": metrics,
        "golden_path": golden,
    }
    return CaseVerdict.of(**fields | changes)


def changed(verdict: Any, **changes: Any) -> Any:
    """The verdict with these changes."""
    return verdict.model_copy(update=changes)


def build_findings(metrics: Any, change: float, num_runs: int) -> tuple[CaseFinding, ...]:
    """Throughput ``change`` from its golden, with evidence; everything else as in the golden."""
    findings = []
    for metric in METRICS:
        value = metric.read(metrics)
        if value is None or metric.gate is None:
            continue
        if metric.gate != "time":
            findings.append(CaseFinding(metric.name, value, value, 0.0, 0.05, Verdict.PASS))
            continue
        bad, good = change < -0.02, change > 0.02
        verdict = Verdict.REGRESSION if bad else Verdict.IMPROVEMENT if good else Verdict.PASS
        evidence = Evidence(value / (1 + change), 0.0093, 0.05, 19, num_runs, 5, bad)
        findings.append(
            CaseFinding(
                metric.name, value, value / (1 + change), change, 0.05, verdict, LASTING * bad, evidence=evidence
            )
        )
    return tuple(findings)


def build_runs(seconds: list[float], recompute: str = "mlp") -> list[RunRecord]:
    """Runs of Llama 3 70B on 32 H100, each with its seconds per step."""
    spec = build_spec(recompute=recompute)
    return [build_record(spec, s, run_id=f"{NIGHT}.{recompute}.{number}") for number, s in enumerate(seconds)]


def build_night(**changes: Any) -> NightVerdict:
    """Nine cases, one for every way in which a case can end."""
    cases = changes.pop("cases", None) or (
        passed(), regressed(), improved(), unsure(), lost_to_infrastructure(), out_of_memory(), expected_oom(),
        late_expectation(), refused(),
    )  # fmt: skip
    fields = {
        "night_id": NIGHT, "suite": "h100_nightly", "title": "Llama 3 on H100, nightly",
        "command": ("mbr-perf", "nightly", "h100_nightly"), "started_at": "2026-01-03T02:00:00Z",
    }  # fmt: skip
    plan = plan_of(*(case.planned for case in cases), **fields | changes.pop("plan", {}))
    order = (
        ExitCode.RUN_FAILED, ExitCode.OUT_OF_MEMORY, ExitCode.REGRESSION, ExitCode.INCONCLUSIVE, ExitCode.IMPROVEMENT,
        ExitCode.OK,
    )  # fmt: skip
    worst = min(cases, key=lambda case: order.index(case.exit_code))
    found: dict[str, Any] = {
        "night_dir": Path("results/nights") / NIGHT,
        "plan": plan,
        "cases": tuple(cases),
        "outcome": "pass" if worst.is_expected else worst.outcome,
        "exit_code": worst.exit_code,
        "finished_at": "2026-01-03T05:41:12Z",
    }
    return NightVerdict.of(**found | changes)


def passed() -> CaseVerdict:
    """Within what noise explains, on a newer torch."""
    return build_case("llama3_70b_none", build_runs([9.31, 9.36, 9.28], "none"), change=-0.004, drift=(TORCH,))


def regressed() -> CaseVerdict:
    """Five repeats and two confirmations."""
    case = build_case(
        "llama3_70b_mlp", build_runs([10.11, 10.15, 10.08, 10.12, 10.13, 10.10, 10.14]), change=-0.034,
        outcome="regression", exit_code=ExitCode.REGRESSION,
        reason=f"TFLOP/s/GPU -3.4 %: {LASTING}",
        planned={"owner": "perf-team", "repeats": 5}, drift=(TORCH,),
    )  # fmt: skip
    why = "suspected regression of tflops_per_gpu"
    confirming = (replace(run, purpose="confirm", reason=why) for run in case.runs[5:])
    return changed(case, runs=(*case.runs[:5], *confirming))


def improved() -> CaseVerdict:
    """Faster than its golden."""
    return build_case("llama3_70b_core", build_runs([9.0, 9.02], "core_attn"), change=0.061, outcome="improvement")


def unsure() -> CaseVerdict:
    """A throttled GPU allows no verdict."""
    record = replayed("throttled", suspect=("GPU 1 was throttled: thermal",))
    case = build_case("llama3_8b_throttled", [record], change=-0.11)
    return changed(
        case, outcome="inconclusive", exit_code=ExitCode.INCONCLUSIVE, reason="GPU 1 was throttled: thermal",
        findings=tuple(
            replace(f, verdict=Verdict.INCONCLUSIVE, reason="GPU 1 was throttled: thermal", evidence=None)
            for f in case.findings
        ),
    )  # fmt: skip


def lost_to_infrastructure() -> CaseVerdict:
    """Both attempts met the same named fault."""
    record = replayed("killed", status="failed", failure="rank 1 lost: node failure")
    case = build_case("llama3_70b_4nodes", [record, record])
    first, second = (replace(run, infrastructure="node_failure") for run in case.runs)
    return changed(
        case, outcome="failed", exit_code=ExitCode.RUN_FAILED, is_infrastructure=True, reason="node failure, twice",
        runs=(first, replace(second, purpose="retry", reason="node_failure in run 0")), counted=(),
    )  # fmt: skip


def out_of_memory() -> CaseVerdict:
    """A recorded run that ran out of memory."""
    return build_case(
        "llama3_8b_none", [read_run("000")], outcome="oom", exit_code=ExitCode.OUT_OF_MEMORY,
        reason="out of memory on rank 0 (stage 0) in forward_backward of step 1",
    )  # fmt: skip


def expected_oom() -> CaseVerdict:
    """Known, and not red."""
    expected = ExpectedFailureRecord(outcome="oom", until="2026-02-01", reason="does not fit before the new allocator")
    return build_case(
        "llama3_8b_full", [read_run("000")], outcome="oom", is_expected=True, planned={"expected": expected},
        remark="expected until 2026-02-01: does not fit before the new allocator",
        reason="out of memory on rank 0 (stage 0) in forward_backward of step 1",
    )  # fmt: skip


def late_expectation() -> CaseVerdict:
    """The date has passed."""
    expected = ExpectedFailureRecord(outcome="failed", until="2026-01-01", reason="upstream hangs")
    record = replayed("non_finite_loss", status="failed", failure="rank 1: loss is nan at step 4")
    return build_case(
        "deepseek_v3", [record], outcome="failed", exit_code=ExitCode.RUN_FAILED, planned={"expected": expected},
        reason="rank 1: loss is nan at step 4",
        remark="the suite expected the outcome failed only until 2026-01-01 (upstream hangs)",
    )  # fmt: skip


def refused() -> CaseVerdict:
    """A rule forbids it, so that nothing was started."""
    return build_case(
        "qwen3_typo", [], outcome="failed", exit_code=ExitCode.RUN_FAILED, golden_path=None,
        planned={"refused": "recompute_modules: no such module 'mpl'\ndid you mean 'mlp'?"},
    )  # fmt: skip


@pytest.fixture(name="make_night")
def _make_night() -> Any:
    return build_night


@pytest.fixture(name="make_case")
def _make_case() -> Any:
    return build_case


@pytest.fixture(name="night", scope="session")
def _night() -> NightVerdict:
    return build_night()


@pytest.fixture(name="written_night")
def _written_night(tmp_path: Path) -> NightVerdict:
    """A night whose folder can be written to."""
    started = datetime(2026, 1, 3, 2, tzinfo=UTC)
    night_dir = tmp_path / "results" / "nights" / NIGHT
    night_dir.mkdir(parents=True)
    return build_night(night_dir=night_dir, plan={"started_at": started.isoformat()})


@pytest.fixture(name="stage")
def _stage(tmp_path: Path) -> Any:
    """A suite of these cases, by name with their settings."""
    return lambda **cases: Stage(tmp_path, cases)


@pytest.fixture(name="nightly")
def _nightly(mbr_perf: Any) -> Any:
    """Replay the suite of a stage."""
    return lambda stage, *more: mbr_perf(*stage.arguments(*more))
