"""The planner against a rank that measures its memory by phase, for every legal recompute setting of a shape."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace

import phases
from case import Case, Check, Part, case_name
from environment import version_of
from phases import Row
from runs import Runs, timed_out
from shapes import FIRST, Shape

from harness.errors import BadRequestError, HarnessError
from harness.experiment.effective import settled_implementation
from harness.experiment.recompute import FullRecompute, SelectiveRecompute
from harness.launch.plan import LaunchPlan
from harness.launch.warm import WarmParents
from harness.measure.launched import launched
from harness.measure.prediction import KeptPrediction
from harness.measure.understanding import RunRequest, Settled, understand
from harness.predict.search import Candidate, Traces, candidates, required_cases
from harness.predict.trace_book import MissingTraceError
from harness.predict.tracer import Tracing, trace_cache
from harness.records.gating import LaunchSettings
from harness.resolve.recipe import Request

WORKER = "phase_worker.py"
STEPS = 2


@dataclass(frozen=True)
class Group:
    """A shape in one precision with one attention: one case, whose settings are predicted together."""

    shape: Shape
    dtype: str
    attention: str

    @property
    def case(self) -> str:
        return case_name(self.shape.name, "planner", self.dtype, self.attention)

    @property
    def asked(self) -> dict[str, object]:
        """Fields of `Request` that differ from the shape's own."""
        return {"compute_dtype": self.dtype, "set_values": (f"kernels.attention_backend={self.attention}",)}


def groups(runs: Runs, shape: Shape, dtype: str, attentions: Sequence[str]) -> Iterator[Group]:
    """Yield attention without stored scores and attention with them; transformer-engine needs flash-attn for `flash`."""
    te = shape.settle(runs.target).software.transformer_engine
    flash = "flash" if runs.target.is_rehearsal or te is None or version_of("flash-attn") else "fused"
    for attention in attentions:
        yield Group(shape, dtype, flash if attention == "fused" else attention)


def compare(runs: Runs, group: Group, only: Sequence[str] | None, parents: WarmParents) -> Part:
    """Yield the case of a group, with a check per setting; before it the case so far, if the first settings are done."""
    is_later, rows = group.attention == "unfused", list[Row]()
    if is_later:
        yield None
    try:
        for row in _compared(runs, group, only, parents):
            if row:
                rows.append(row)
            elif not is_later:
                yield _case(group, rows, ())
                yield None
    except HarnessError as error:
        yield Case(group.case, checks=(Check("planned", "fail", str(error)),))
        return
    yield _case(group, rows, [text for text in only or () if text not in {row.recompute for row in rows}])


def _case(group: Group, rows: Sequence[Row], absent: Sequence[str]) -> Case:
    """Return the case; where every setting is refused, the rules are the finding."""
    table = {"shape": group.shape.name, "compute_dtype": group.dtype, "attention": group.attention,
             "rows": [asdict(row) for row in rows]}  # fmt: skip
    checks = tuple(row.check for row in rows if not row.refused_by)
    if not checks:
        rules = sorted({rule for row in rows for rule in row.refused_by})
        checks = (Check("compared", "skipped", f"every setting is refused by {', '.join(rules)}"),)
    checks = (*checks, *(Check(text, "skipped", "no effect here, or that of another setting") for text in absent))
    return Case(group.case, "none", checks, round(sum(row.seconds for row in rows), 1), facts={"planner": table})


def _compared(runs: Runs, group: Group, only: Sequence[str] | None, parents: WarmParents) -> Iterator[Row | None]:
    """Yield rows, the most telling first, None after :data:`FIRST`. Earlier measurements are reused, asked for or not."""
    settled = group.shape.settle(runs.target, **group.asked)
    implementation = settled_implementation(settled.spec)
    found = candidates(settled.spec, settled.software, implementation)
    kept = reusable(runs, group)
    rows = [row for row in found.rows if only is None or row.text in ("none", *only, *kept)]
    legal = tuple(row for row in rows if row.is_legal)
    cases = required_cases(replace(found, rows=legal), implementation, settled.software) if legal else ()
    tracing = Tracing(runs.target.host, trace_cache(runs.target.host.shell))
    traces = tracing.traces(cases, implementation) if cases else None
    is_first = True
    for candidate in sorted(rows, key=_worth):
        if is_first and candidate.text not in FIRST:
            is_first = False
            yield None
        if not candidate.is_legal or traces is None:
            yield Row(candidate.text, refused_by=candidate.rules)
            continue
        row = _predicted(candidate, settled, traces)
        if row.problem:
            yield row
        elif candidate.text in kept:
            yield replace(row, measured=kept[candidate.text])
        else:
            yield _measured(runs, group, row, parents)


def reusable(runs: Runs, group: Group) -> dict[str, Mapping[str, int]]:
    """Return the phases by setting that an earlier sitting measured wholly and as predicted."""
    case = runs.kept.get(group.case)
    table = case.facts.get("planner", {}) if case else {}
    rows = [phases.row_of(row) for row in table.get("rows", ())]
    return {row.recompute: row.measured for row in rows if row.is_measured and row.check.verdict != "fail"}


def _worth(candidate: Candidate) -> tuple[int, int]:
    """Sort: :data:`FIRST`, each module, other whole layers, all modules together, the other combinations."""
    policy = candidate.spec.recompute
    if candidate.text in FIRST:
        return 0, FIRST.index(candidate.text)
    if isinstance(policy, FullRecompute):
        return 2, policy.num_layers
    assert isinstance(policy, SelectiveRecompute)
    return (1, 0) if len(policy.modules) == 1 else (3, -len(policy.modules))


def _predicted(candidate: Candidate, settled: Settled, traces: Traces) -> Row:
    spec = candidate.spec
    try:
        figures = phases.predicted(spec, settled_implementation(settled.spec), traces, settled.software)
    except MissingTraceError as error:
        return Row(candidate.text, problem=f"not predicted: {error.args[0]}")
    return Row(candidate.text, predicted=figures, unjudged=phases.unjudged(spec))


def _measured(runs: Runs, group: Group, row: Row, parents: WarmParents) -> Row:
    """Measure under mbr-perf's own launcher, with phase_worker.py in place of its worker."""
    left, began = runs.left_s("phases"), time.monotonic()
    if left is None:
        return row
    run_dir = runs.folder(f"{group.case}.{case_name(row.recompute)}")
    asked = group.shape.asked(runs.target, **group.asked, recompute=row.recompute, max_steps=STEPS)
    try:
        understood = understand(
            RunRequest(asked=Request(**asked), launch=LaunchSettings(timeout_s=left)), runs.target.host, run_dir
        )
    except BadRequestError as error:
        return replace(row, problem=str(error))
    assert isinstance(understood.plan, LaunchPlan)
    run_dir.mkdir(parents=True)
    worker = (str(runs.programs / WORKER), str(run_dir))
    understood = replace(understood, plan=replace(understood.plan, worker=worker))
    kept = KeptPrediction(None, "compared phase by phase")
    ran = launched(understood, run_dir.name, progress=nullcontext(lambda _: None), kept=kept, parents=parents)
    seconds = time.monotonic() - began
    runs.took("phases", seconds)
    if ran.signal is not None:
        raise KeyboardInterrupt
    record = ran.record  # one that the deadline stopped is no problem
    problem = "" if record.status == "ok" or timed_out(record) else f"{record.status}: {record.failure}"
    return replace(row, measured=phases.measured(run_dir), problem=problem, seconds=round(seconds, 1))
