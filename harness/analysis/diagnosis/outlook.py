"""The cheapest change that is predicted to fit, out of the planner's answer."""

from dataclasses import dataclass

from harness.analysis.diagnosis.values import Change
from harness.planning.search import Plan, Row
from harness.spec.recompute import canonical_text


@dataclass(frozen=True, slots=True)
class Outlook:
    """``change`` None: nothing fits, or the job as it is does (``fits_already``), or nothing was planned (``problem``).

    ``budget_bytes``: what was to be fitted into.
    """

    change: Change | None = None
    fits_already: bool = False
    budget_bytes: int | None = None
    problem: str = ""


def outlook_of(plan: Plan) -> Outlook:
    """The recommended setting that fits; without CUDA graphs where only so one does. None that is merely tight."""
    budget = plan.limits.budget_bytes
    asked = asked_row(plan)
    if asked is None or asked.prediction is None:
        reason = asked.reason if asked else "the planner does not know its recompute setting"
        return Outlook(budget_bytes=budget, problem=f"what the job needs as it is cannot be predicted ({reason})")
    if asked.verdict == "FITS":
        return Outlook(fits_already=True, budget_bytes=budget)
    if plan.recommended is not None and plan.recommended.verdict == "FITS":
        return Outlook(_change(plan.recommended), budget_bytes=budget)
    other = plan.without_graphs.recommended if plan.without_graphs else None
    if other is not None and other.verdict == "FITS":
        return Outlook(_change(other, ("cuda_graph_impl", "none")), budget_bytes=budget)
    return Outlook(budget_bytes=budget)


def asked_row(plan: Plan) -> Row | None:
    """The row of the job's own setting."""
    own = canonical_text(plan.spec.recompute)
    return next((row for row in plan.rows if canonical_text(row.candidate.spec.recompute) == own), None)


def _change(row: Row, *more: tuple[str, str]) -> Change:
    assert row.prediction is not None
    cost, changes = "step time" if row.prediction.time else "FLOPs", (("recompute", row.text), *more)
    return Change(row.text, changes, row.prediction.peak_bytes, row.overhead, cost)
