"""Entries of plans: a planned and a refused entry are two types. On disk, the fate or the reason distinguishes them."""

import pytest
from pydantic import ValidationError

from harness.records.night import NightPlan, PlannedCase, RefusedCase
from harness.records.sweep import PlannedCell, RefusedCell, SweepPlan


def sweep_plan(*cells):
    return SweepPlan(sweep_id="s", title="t", recipe="llama3_8b", gpu="cpu", control="none", axes=(), grid=False, repeats=1,
                     cells=cells, command=("mbr-perf",), started_at="2026-03-04T05:06:07Z", mbr_perf="0.1.0")  # fmt: skip


def night_plan(*cases):
    return NightPlan(night_id="n", suite="suite", title="A suite", cases=cases, confirm=2, retries=1,
                     command=("mbr-perf",), started_at="2026-01-02T03:04:05Z", mbr_perf="0.1.0")  # fmt: skip


def cell(kind, **more):
    return kind(name="mlp", changes={"recompute": "mlp"}, recompute="mlp", **more)


def test_cells_are_read_back_as_what_they_were(make_spec):
    runs = cell(PlannedCell, index=0, spec=make_spec())
    pruned = cell(RefusedCell, index=1, spec=make_spec(), fate="pruned", reason="needs 90 GiB")
    unresolved = cell(RefusedCell, index=2, fate="illegal", reason="no such module")
    plan = SweepPlan.model_validate_json(sweep_plan(runs, pruned, unresolved).model_dump_json())
    assert plan.cells == (runs, pruned, unresolved)
    assert plan.planned == (runs,)


def test_cases_are_read_back_as_what_they_were(make_spec):
    runs = PlannedCase(name="dense", spec=make_spec(), repeats=3)
    forbidden = RefusedCase(name="moe", spec=make_spec(), repeats=3, refused="rule T08")
    unresolved = RefusedCase(name="wrong", repeats=3, refused="no such recipe")
    plan = NightPlan.model_validate_json(night_plan(runs, forbidden, unresolved).model_dump_json())
    assert plan.cases == (runs, forbidden, unresolved)
    assert plan.planned == (runs,)


def test_an_entry_that_may_run_has_an_experiment():
    with pytest.raises(ValidationError, match="spec"):
        PlannedCase.model_validate({"name": "dense", "repeats": 3})
    with pytest.raises(ValidationError, match="spec"):
        cell(PlannedCell, index=0)


def test_an_entry_is_not_refused_without_a_reason(make_spec):
    with pytest.raises(ValidationError, match="refused"):
        RefusedCase(name="dense", spec=make_spec(), repeats=3, refused="")
    with pytest.raises(ValidationError, match="reason"):
        cell(RefusedCell, index=0, fate="illegal")
