"""What each cell is predicted to need, and what follows: run, or the reason why not."""

from collections.abc import Iterator, Sequence

from harness.errors import HarnessError
from harness.launch.environment import Host
from harness.planning.assumptions import is_routed_naturally
from harness.planning.prediction import predict
from harness.planning.search import Traces
from harness.planning.stages import Composer, MissingTraceError
from harness.records.sweep import Cell, PlannedCell, RefusedCell
from harness.runner.calibration import constants_for
from harness.runner.prediction import RunPrediction
from harness.runner.sweep.axes import RECOMPUTE, SweptAxis, name_of, told
from harness.runner.sweep.drafts import CellDraft
from harness.runner.tracing import Tracing, trace_cache
from harness.spec.effective import Implementation, settled_implementation
from harness.spec.experiment import ExperimentSpec
from harness.spec.software import Software
from harness.units import format_bytes


def planned_cells(
    axes: tuple[SweptAxis, ...], drafts: Sequence[CellDraft], answers: Iterator[RunPrediction], *, prunes: bool
) -> tuple[Cell, ...]:
    """Drafts as cells, with names, to be run or refused; ``answers`` are for those that may run, in their order."""
    changes = [told(axes, one.asked, one.spec) for one in drafts]
    names = [name_of(own, None if place == 0 else changes[0]) for place, own in enumerate(changes)]
    cells = []
    for index, one in enumerate(drafts):
        answer = next(answers) if one.may_run else RunPrediction(None)
        fate, reason = _fate(one, names, answer, prunes=prunes)
        checked = one.checked
        words = {
            "index": index,
            "name": names[index],
            "changes": changes[index],
            "recompute": one.spec.recompute.text if one.spec else changes[index].get(RECOMPUTE, ""),
            "spec": one.spec,
            "sources": checked.sources if checked else {},
            "notes": checked.notes if checked else (),
            "findings": checked.findings if checked else (),
            "prediction": answer.kept.prediction,
            "no_prediction": answer.reason,
        }
        twin = names[one.twin] if one.twin is not None else None
        cells.append(
            PlannedCell.model_validate(words)
            if fate == "run"
            else RefusedCell.model_validate(words | {"fate": fate, "reason": reason, "same_as": twin})
        )
    return tuple(cells)


def _fate(one: CellDraft, names: Sequence[str], answer: RunPrediction, *, prunes: bool) -> tuple[str, str]:
    if one.twin is not None:
        return "skipped_inert", f"equal in effect to {names[one.twin]}{_inert(one)}"
    if one.problem:
        return "illegal", one.problem
    capacity = one.spec.capacity_bytes if one.spec else None
    if prunes and answer.prediction and capacity is not None and answer.prediction.range_bytes[0] > capacity:
        low, stage = answer.prediction.range_bytes[0], answer.prediction.worst.pp_rank
        return "pruned", f"stage {stage} needs at least {format_bytes(low)} of {format_bytes(capacity)}"
    return "run", ""


def _inert(one: CellDraft) -> str:
    inert = one.checked.effective.inert_modules if one.checked and one.checked.effective else {}
    return "".join(f"; {module} does nothing: {why}" for module, why in inert.items())


def foretell(specs: Sequence[ExperimentSpec], software: Software, host: Host) -> tuple[RunPrediction, ...]:
    """One answer for each of ``specs``, in their order; the reason where there is no prediction. Never raises for that."""
    kinds = [(settled_implementation(spec), is_routed_naturally(spec)) for spec in specs]
    tracing = Tracing(host, trace_cache(host.shell))
    traced = {
        kind: _traces(
            tracing,
            [spec for spec, own in zip(specs, kinds, strict=True) if own == kind],
            implementation=kind[0],
            uneven=kind[1],
        )
        for kind in dict.fromkeys(kinds)
    }
    return tuple(_foretold(spec, kind[0], traced[kind], software) for spec, kind in zip(specs, kinds, strict=True))


def _traces(
    tracing: Tracing, specs: Sequence[ExperimentSpec], *, implementation: Implementation, uneven: bool
) -> Traces | str:
    cases = {case.key: case for spec in specs for case in Composer(spec, implementation).cases()}
    try:
        return tracing.traces(tuple(cases.values()), implementation, uneven=uneven)
    except (HarnessError, OSError) as error:
        return str(error).splitlines()[0]


def _foretold(
    spec: ExperimentSpec, implementation: Implementation, traces: Traces | str, software: Software
) -> RunPrediction:
    if isinstance(traces, str):
        return RunPrediction(None, traces)
    try:
        constants = constants_for(spec.gpu)
        return RunPrediction(predict(spec, implementation, traces.even, traces.uneven, software, constants))
    except MissingTraceError:
        reasons = (traces.refused.get(case.key) for case in Composer(spec, implementation).cases())
        return RunPrediction(None, next((reason for reason in reasons if reason), "not traced"))
    except (HarnessError, OSError) as error:  # a calibration file that cannot be read, say
        return RunPrediction(None, str(error).splitlines()[0])
