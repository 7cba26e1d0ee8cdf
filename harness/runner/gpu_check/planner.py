"""The planner against a rank that weighs its phases, for every legal recompute setting of a shape."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib import metadata

from harness.errors import BadRequestError, HarnessError
from harness.launch.plan import LaunchPlan
from harness.launch.rendezvous import Nodes
from harness.launch.warm import WarmParents
from harness.planning.search import Traces, required_cases
from harness.planning.settings import Candidate, candidates
from harness.planning.stages import MissingTraceError
from harness.records.run import RunRecord
from harness.runner.gpu_check import phases
from harness.runner.gpu_check.case import Case, case_name
from harness.runner.gpu_check.checks import Check
from harness.runner.gpu_check.phases import Row
from harness.runner.gpu_check.product import timed_out
from harness.runner.gpu_check.runs import Runs
from harness.runner.gpu_check.shapes import Shape
from harness.runner.launched import Launch, launched
from harness.runner.prediction import KeptPrediction
from harness.runner.request import RunRequest
from harness.runner.tracing import Tracing, trace_cache
from harness.runner.understanding import understand
from harness.spec.effective import Implementation, settled_implementation
from harness.spec.recompute import FullRecompute, SelectiveRecompute
from harness.spec.software import Software

WORKER = "phase_worker.py"
STEPS = 2
NO_SETTING = "does nothing in this model, or the same as another setting"
DTYPES = ("bf16", "fp8_cs")


@dataclass(frozen=True)
class Group:
    """A shape in one precision with one attention: what is settled once, and predicted together."""

    shape: Shape
    dtype: str
    attention: str

    @property
    def case(self) -> str:
        """The name of its case."""
        return case_name(self.shape.name, "planner", self.dtype, self.attention)


def groups(runs: Runs, shape: Shape, dtypes: Sequence[str]) -> Iterator[Group]:
    """Attention that keeps no scores, and attention that does; transformer-engine's is `fused` without flash-attn."""
    te = shape.settle(runs.target).software.transformer_engine
    flash = "flash" if runs.target.is_rehearsal or te is None or _has_flash_attention() else "fused"
    for dtype in dtypes:
        for attention in (flash, "unfused"):
            yield Group(shape, dtype, attention)


def _has_flash_attention() -> bool:
    try:
        return bool(metadata.version("flash-attn"))
    except metadata.PackageNotFoundError:
        return False


def compare_groups(
    runs: Runs, shape: Shape, dtypes: Sequence[str], only: Sequence[str] | None, parents: WarmParents
) -> Iterator[Case]:
    """A case per group, with a check per setting."""
    for group in groups(runs, shape, dtypes):
        began = time.monotonic()
        try:
            rows = [*_compared(runs, group, only, parents)]
        except HarnessError as error:
            yield Case(group.case, checks=(Check("planned", "fail", str(error)),))
            continue
        absent = [text for text in only or () if text not in {row.recompute for row in rows}]
        yield _case(group, rows, absent, time.monotonic() - began)


def _case(group: Group, rows: Sequence[Row], absent: Sequence[str], seconds: float) -> Case:
    """A group none of whose settings is legal was not compared: then the rules that forbid it are the finding."""
    table = {"shape": group.shape.name, "compute_dtype": group.dtype, "attention": group.attention,
             "rows": [asdict(row) for row in rows]}  # fmt: skip
    checks = tuple(row.check for row in rows if not row.refused_by)
    if not checks:
        rules = sorted({rule for row in rows for rule in row.refused_by})
        checks = (Check("compared", "skipped", f"every setting is refused by {', '.join(rules)}"),)
    checks = (*checks, *(Check(text, "skipped", NO_SETTING) for text in absent))
    return Case(group.case, "none", checks, seconds=round(seconds, 1), facts={"planner": table})


def _compared(runs: Runs, group: Group, only: Sequence[str] | None, parents: WarmParents) -> Iterator[Row]:
    """Rows in the order of their worth.

    What an earlier sitting weighed is taken over, also where it is not asked for now; predictions are made anew.
    """
    settled = group.shape.settle(runs.target, dtype=group.dtype, attention=group.attention)
    implementation = settled_implementation(settled.spec)
    found = candidates(settled.spec, settled.software, implementation)
    kept = taken_over(runs, group, {row.text: row.spec.fingerprint for row in found.rows})
    rows = [row for row in found.rows if only is None or row.text in ("none", *only, *kept)]
    traces: Traces | None = None
    if any(row.is_legal for row in rows):
        tracing = Tracing(runs.target.host, trace_cache(runs.target.host.shell))
        traces = tracing.traces(required_cases(replace(found, rows=tuple(rows)), implementation), implementation, uneven=False)  # fmt: skip
    for candidate in sorted(rows, key=_worth):
        if not candidate.is_legal or traces is None:
            yield Row(candidate.text, refused_by=candidate.rules)
            continue
        row = _predicted(candidate, implementation, traces, settled.software)
        if row.problem:
            yield row
        elif candidate.text in kept:
            yield replace(row, measured=kept[candidate.text])
        else:
            yield _measured(runs, group, row, parents)


def taken_over(runs: Runs, group: Group, fingerprints: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Phases by setting, where the experiment is still the one that was weighed; what is not is told."""
    weighed = kept_measurements(runs.kept.get(group.case))
    other = [text for text, (fingerprint, _) in weighed.items() if fingerprint != fingerprints.get(text)]
    if other:
        runs.told.append(f"not taken over, of another recipe: {group.case}, {'; '.join(other)}")
    return {text: measured for text, (_, measured) in weighed.items() if text not in other}


def kept_measurements(case: Case | None) -> dict[str, tuple[str, dict[str, int]]]:
    """Fingerprint and phases by setting, of those that an earlier sitting weighed wholly and found as predicted."""
    table = case.facts.get("planner") if case else None
    rows = table.get("rows", ()) if isinstance(table, Mapping) else ()
    failed = {check.name for check in case.checks if check.verdict == "fail"} if case else set()
    found = {row["recompute"]: row for row in rows if row["recompute"] not in failed}
    return {
        text: (row.get("fingerprint", ""), dict(row["measured"]))
        for text, row in found.items()
        if set(row.get("measured") or ()) == set(phases.TOLERANCES)
    }


def _worth(candidate: Candidate) -> tuple[int, int]:
    """Without recompute first, then each module, whole layers, all modules at once, the other combinations."""
    policy = candidate.spec.recompute
    if isinstance(policy, FullRecompute):
        return 2, policy.num_layers
    if isinstance(policy, SelectiveRecompute):
        return (1, 0) if len(policy.modules) == 1 else (3, -len(policy.modules))
    return 0, 0


def _predicted(candidate: Candidate, implementation: Implementation, traces: Traces, software: Software) -> Row:
    try:
        said = phases.predicted(candidate.spec, implementation, traces, software)
    except MissingTraceError as error:
        return Row(candidate.text, problem=f"not predicted: {error.args[0]}")
    unjudged = phases.unjudged(candidate.spec)
    return Row(candidate.text, predicted=said, unjudged=unjudged, fingerprint=candidate.spec.fingerprint)


def _measured(runs: Runs, group: Group, row: Row, parents: WarmParents) -> Row:
    """Under the product's launcher, with the worker that weighs in place of the product's."""
    left, began = runs.left_s("phases"), time.monotonic()
    if left is None:
        return row
    run_dir = runs.folder(f"{group.case}.{case_name(row.recompute)}")
    asked = group.shape.request(runs.target, dtype=group.dtype, attention=group.attention)
    asked = replace(asked, recompute=row.recompute, max_steps=STEPS)
    try:
        understood = understand(RunRequest(asked=asked, timeout_s=left), runs.target.host, run_dir)
    except BadRequestError as error:
        return replace(row, problem=str(error))
    assert isinstance(understood.plan, LaunchPlan)
    run_dir.mkdir(parents=True)
    worker = (str(runs.programs / WORKER), str(run_dir))
    understood = replace(understood, plan=replace(understood.plan, worker=worker))
    launch = Launch(understood, run_dir, run_dir.name, Nodes())
    ran = launched(launch, progress=lambda _: nullcontext(lambda _: None), prediction=_foretold, parents=parents)
    seconds = time.monotonic() - began
    runs.took("phases", seconds)
    if ran.signal is not None:
        raise KeyboardInterrupt
    measured, problem = phases.measured(run_dir), problem_of(ran.record)
    return replace(row, measured=measured, problem=problem, seconds=round(seconds, 1))


def problem_of(record: RunRecord) -> str:
    """Why a run could not be weighed; nothing for one that the deadline stopped, which says what it came to."""
    return "" if record.status == "ok" or timed_out(record) else f"{record.status}: {record.failure}"


@contextmanager
def _foretold() -> Iterator[Callable[[int | None], KeptPrediction]]:
    yield lambda _: KeptPrediction(None, "compared phase by phase")
