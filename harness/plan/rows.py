"""The rows of a plan, its settings and layouts, as values that are their JSON."""

from typing import Annotated, Self

from pydantic import BeforeValidator

from harness.experiment.experiment import ExperimentSpec
from harness.foreign.exporting import to_paste
from harness.plan.nearest import Nearest
from harness.plan.optimal import OptimalDocument
from harness.plan.run import Layout, Planned, Unplanned
from harness.plan.searched import SearchDocument
from harness.predict.advice import (
    Advice,
    ModuleWorth,
    advice,
    module_worths,
    recommendations,
)
from harness.predict.device import DeviceNeeds
from harness.predict.exact import ExactSetting
from harness.predict.ledger import PeakName
from harness.predict.prediction import Verdict, reserved_of
from harness.predict.reserved import Drawn
from harness.predict.search import Plan, Row
from harness.predict.step_ranges import StepSource
from harness.records.prediction import Source, StagePrediction
from harness.show.json import Document, Shown, Text, at

Range = Annotated[tuple[int, int] | None, BeforeValidator(lambda ends: ends and (ends[0], ends[2]))]
"""The lower and the upper end of three sizes, whose middle one is the likely value."""


class StageRow(StagePrediction, Shown):
    """Peak of one pipeline stage with all candidates for it, in bytes."""

    peaks: dict[PeakName, int]
    reserved_bytes: int | None = at("reserved", 1)
    reserved_range_bytes: Range = at("reserved")
    fits_bytes: int | None = at("held", "fits", 1)
    fits_range_bytes: Range = at("held", "fits")
    reserved_source: Source | None = at("held", "source")


class SettingRow(Shown):
    """One setting. ``reason``: why its figures are null. ``step_time_origin``: ``step_time_source`` in words."""

    layout: Text
    recompute: str = at("text")
    legal: bool = at("candidate", "is_legal")
    rules: tuple[str, ...] = at("candidate", "rules")
    inert_modules: Annotated[tuple[str, ...], BeforeValidator(tuple)] = at("candidate", "inert_modules")
    reason: Text
    peak_bytes: int | None = at("prediction", "peak_bytes")
    peak_range_bytes: tuple[int, int] | None = at("prediction", "range_bytes")
    range_class: str | None = at("prediction", "job_class")
    range_rows: int | None = at("prediction", "num_rows")
    graph_pool_bytes: int | None = at("prediction", "worst", "pool")
    host_bytes: int | None = at("prediction", "host_bytes")
    reserved_bytes: int | None = at("prediction", "reserved", 1)
    reserved_range_bytes: Range = at("prediction", "reserved")
    fits_bytes: int | None = at("prediction", "fits", 1)
    fits_range_bytes: Range = at("prediction", "fits")
    reserved_source: Source | None = at("prediction", "reserved_source")
    drawn: Drawn | None = at("prediction", "drawn")
    device_bytes: int | None = at("device", 1)
    device_range_bytes: Range = at("device", default=None)
    worst_stage: int | None = at("prediction", "worst", "pp_rank")
    fullest_stage: int | None = at("prediction", "fullest", "pp_rank")
    peak: str | None = at("prediction", "worst", "peak")
    stages: tuple[StageRow, ...] = ()
    step_time_s: float | None = at("prediction", "time", "likely_s")
    step_time_range_s: tuple[float, float] | None = at("prediction", "time", "range_s")
    step_time_origin: str | None = at("prediction", "time", "source", "text")
    step_time_source: StepSource | None = at("prediction", "time", "source")
    tflops_per_gpu: float | None = at("prediction", "tflops_per_gpu")
    mfu: float | None = at("prediction", "mfu")
    hfu: float | None = at("prediction", "hfu")
    host_bound: bool | None = at("prediction", "time", "host_bound")
    model_flops_per_step: int | None = at("prediction", "model_flops")
    recompute_flops_per_step: int | None = at("prediction", "recompute_flops")
    recompute_overhead: float | None = at("overhead")
    verdict: Verdict | None
    verdict_is_certain: bool | None

    @classmethod
    def of_row(cls, row: Row, layout: str, needs: DeviceNeeds) -> Self:
        """``layout``: the name of its layout, empty for the only one. ``needs``: of its device beside tensors."""
        found = row.prediction
        stages = zip(found.stages, found.held, strict=True) if found else ()
        return cls.of(
            row,
            layout=layout,
            stages=[StageRow.of(stage, held=held, reserved=reserved_of(held)) for stage, held in stages],
            device=[end + needs.outside_bytes for end in found.reserved] if found else None,
            verdict_is_certain=row.is_certain if row.verdict else None,
        )


class PasteRow(Shown):
    """One recommended setting for other programs. ``without``: arguments of Megatron-LM that must go."""

    recompute: str
    bridge: str
    megatron_lm: str
    without: tuple[str, ...]
    environment: Text


class LayoutRow(Shown):
    """A layout and its limits. ``cure``: the better setting of the allocator. ``steps_to_fit``: what to try in turn."""

    layout: Text
    problem: None = None
    spec: ExperimentSpec
    capacity_bytes: int | None = at("limits", "capacity_bytes")
    margin: float = at("limits", "margin")
    beside_tensors: DeviceNeeds = at("limits", "needs")
    max_overhead: float | None = at("limits", "max_overhead")
    recommended: str | None = at("recommended", "text")
    safe: str | None = at("safe", "text")
    cure: SettingRow | None
    same_time: Annotated[tuple[str, ...], BeforeValidator(lambda rows: [row.text for row in rows])]
    riskier: str | None = at("riskier", "text")
    inert_modules: dict[str, str] = at("inert")
    not_combined: tuple[str, ...] = at("skipped")
    modules_by_price: tuple[ModuleWorth, ...]
    steps_to_fit: tuple[Advice, ...]
    to_paste: tuple[PasteRow, ...]

    @classmethod
    def of_plan(cls, layout: str, plan: Plan, base: ExperimentSpec, *, with_sizes: bool) -> Self:
        """Return the row. ``base``: the job without the advice; ``with_sizes``: as in `to_paste`."""
        pasted = [
            (row.text, to_paste(row.candidate.spec, base, with_sizes=with_sizes)) for row in recommendations(plan)
        ]
        return cls.of(
            plan,
            layout=layout,
            modules_by_price=module_worths(plan),
            steps_to_fit=advice(plan),
            cure=SettingRow.of_row(plan.cure, layout, plan.limits.needs) if plan.cure else None,
            to_paste=[PasteRow.of(each, recompute=text) for text, each in pasted],
        )


class PlanDocument(Document):
    """``mbr-perf plan --json``. ``notes``: on how the first layout was settled."""

    settings: tuple[SettingRow, ...]
    recommended: str | None = at("best", "row", "text")
    recommended_layout: Text = at("best", "name")
    same_time_layouts: Annotated[tuple[str, ...], BeforeValidator(lambda layouts: [each.name for each in layouts])] = (
        at("same_time")
    )
    assumptions: tuple[str, ...]
    layouts: tuple[LayoutRow | Unplanned, ...]
    exact: tuple[ExactSetting, ...]
    notes: tuple[str, ...]
    search: SearchDocument | None = None
    optimal: OptimalDocument | None = None
    nearest_golden: Nearest | None = None


def planned_document(
    planned: Planned, search: SearchDocument | None = None, base: ExperimentSpec | None = None
) -> PlanDocument:
    """Return all that one request planned. ``base``: the job whose layouts a search varied."""
    plans = [(layout.name, layout.plan) for layout in planned.made]
    with_sizes = base is not None or len(planned.layouts) > 1
    return PlanDocument.of(
        planned,
        settings=[SettingRow.of_row(row, name, plan.limits.needs) for name, plan in plans for row in plan.rows],
        assumptions=tuple(dict.fromkeys(text for _, plan in plans for text in plan.assumptions)),
        layouts=[
            LayoutRow.of_plan(layout.name, layout.plan, base or plans[0][1].spec, with_sizes=with_sizes)
            if isinstance(layout, Layout)
            else layout
            for layout in planned.layouts
        ],
        search=search,
        optimal=OptimalDocument.of_optimal(planned.optimal) if planned.optimal else None,
    )
