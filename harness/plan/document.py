"""JSON of a plan, of its calibration and of exact traces."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from harness.experiment.experiment import ExperimentSpec
from harness.foreign.exporting import to_paste
from harness.plan.nearest import Nearest
from harness.plan.request import PlanRequest
from harness.plan.run import Planned
from harness.plan.searched import Searched, Tried, command
from harness.predict.advice import (
    Advice,
    ModuleWorth,
    advice,
    module_worths,
    recommendations,
    riskier_text,
    safe_instead,
    why_none,
)
from harness.predict.device import DeviceNeeds
from harness.predict.ledger import PeakName
from harness.predict.prediction import ExactPeak, Verdict
from harness.predict.search import Plan, Row
from harness.records.prediction import StagePrediction
from harness.records.trace import Calibration
from harness.show.json import Document, Shown, Text, at


class StageRow(StagePrediction):
    """Peak of one pipeline stage with all candidates for it, in bytes."""

    peaks: dict[PeakName, int]


class SettingRow(Shown):
    """One setting. Without a prediction its figures are null, and ``reason`` says why."""

    layout: Text
    recompute: str = at("text")
    legal: bool = at("candidate", "is_legal")
    rules: tuple[str, ...] = at("candidate", "rules")
    inert_modules: tuple[str, ...]
    reason: Text
    peak_bytes: int | None = at("prediction", "peak_bytes")
    peak_range_bytes: tuple[int, int] | None = at("prediction", "range_bytes")
    range_class: str | None = at("prediction", "job_class")
    range_rows: int | None = at("prediction", "num_rows")
    graph_pool_bytes: int | None = at("prediction", "pool_bytes")
    device_bytes: int | None
    device_range_bytes: tuple[int, int] | None
    worst_stage: int | None = at("prediction", "worst", "pp_rank")
    peak: str | None = at("prediction", "worst", "peak")
    stages: tuple[StageRow, ...]
    step_time_s: float | None = at("prediction", "time", "likely_s")
    step_time_range_s: tuple[float, float] | None
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
        time = found.time if found else None
        return cls.of(
            row,
            layout=layout,
            inert_modules=tuple(row.candidate.inert_modules),
            stages=[StageRow.model_validate(stage, from_attributes=True) for stage in found.stages] if found else (),
            device_bytes=needs.device_bytes(found.peak_bytes + found.pool_bytes) if found else None,
            device_range_bytes=tuple(needs.device_bytes(end + found.pool_bytes) for end in found.range_bytes)
            if found
            else None,
            step_time_range_s=(time.low_s, time.high_s) if time else None,
            verdict_is_certain=row.is_certain if row.verdict else None,
        )


class PasteRow(Shown):
    """One recommended setting in words of other programs: overrides of Megatron-Bridge, arguments of Megatron-LM.

    ``without``: arguments of Megatron-LM that must go.
    """

    recompute: str
    bridge: str
    megatron_lm: str
    without: tuple[str, ...]


class LayoutRow(Shown):
    """What was planned for one layout, and with which limits."""

    layout: Text
    problem: None = None
    spec: ExperimentSpec
    capacity_bytes: int | None = at("limits", "capacity_bytes")
    margin: float = at("limits", "margin")
    user_buffer_bytes: int = at("limits", "needs", "user_buffer_bytes")
    beside_tensors: DeviceNeeds = at("limits", "needs")
    max_overhead: float | None = at("limits", "max_overhead")
    recommended: str | None = at("recommended", "text")
    not_recommended_because: Text
    safe: str | None = at("safe", "text")
    safe_instead: Text
    same_time: tuple[str, ...]
    riskier: str | None = at("riskier", "text")
    riskier_because: Text
    inert_modules: dict[str, str] = at("inert")
    not_combined: tuple[str, ...] = at("skipped")
    modules_by_price: tuple[ModuleWorth, ...]
    advice: tuple[Advice, ...]
    to_paste: tuple[PasteRow, ...]

    @classmethod
    def of_plan(cls, layout: str, plan: Plan, base: ExperimentSpec, *, with_sizes: bool) -> Self:
        """Return the row, with advice if nothing fits.

        ``base``: the job without the advice; ``with_sizes``: as in `to_paste`.
        """
        pasted = [
            (row.text, to_paste(row.candidate.spec, base, with_sizes=with_sizes)) for row in recommendations(plan)
        ]
        return cls.of(
            plan, layout=layout, not_recommended_because=why_none(plan), safe_instead=safe_instead(plan),
            riskier_because=riskier_text(plan), modules_by_price=module_worths(plan), advice=advice(plan),
            same_time=tuple(row.text for row in plan.same_time),
            to_paste=[PasteRow.of(each, recompute=text) for text, each in pasted],
        )  # fmt: skip


class UnplannedLayout(Shown):
    """A layout that could not be planned, and why."""

    layout: Text
    problem: str


class ExactRow(Shown):
    """One stage, composed and traced whole. ``error``: composed over exact, less one."""

    pp_rank: int
    composed_bytes: int
    exact_bytes: int | None
    optimizer_step_bytes: int
    seconds: float | None
    problem: Text
    error: float | None


class ExactSetting(Shown):
    """One setting whose whole steps were traced."""

    recompute: str
    stages: tuple[ExactRow, ...]


class SearchedRow(Shown):
    """One setting of one layout that a search found. ``command`` runs it; the others set it in other programs."""

    layout: str
    recompute: str
    peak_bytes: int
    step_time_s: float | None
    verdict: Verdict | None
    command: str
    bridge: str
    megatron_lm: str
    without: tuple[str, ...]


class SearchDocument(Shown):
    """``plan --search``: ``layouts`` of ``num_layouts`` by how they ended, the best, and the Pareto set."""

    num_layouts: int
    interrupted: bool
    layouts: dict[str, int]
    best: tuple[SearchedRow, ...]
    pareto: tuple[SearchedRow, ...]


class PlanDocument(Document):
    """``mbr-perf plan --json``. ``notes``: on how the first layout was settled.

    ``same_time_layouts``: layouts that are as fast as the recommended one, as far as predictions can tell.
    """

    settings: tuple[SettingRow, ...]
    recommended: str | None
    recommended_layout: Text
    same_time_layouts: tuple[str, ...] = ()
    assumptions: tuple[str, ...]
    layouts: tuple[LayoutRow | UnplannedLayout, ...]
    exact: tuple[ExactSetting, ...]
    notes: tuple[str, ...]
    search: SearchDocument | None = None
    nearest_golden: Nearest | None = None
    nearest_published: Nearest | None = None

    def rows(self) -> list[Mapping[str, object]]:
        """One for each setting of each layout, without its stages."""
        return [row.model_dump(exclude={"stages"}) for row in self.settings]


def plan_document(
    layouts: Sequence[tuple[str, Plan | None, str]],
    best: str | None,
    exact: Mapping[str, tuple[ExactPeak, ...]] | None = None,
    notes: tuple[str, ...] = (),
    search: SearchDocument | None = None,
    base: ExperimentSpec | None = None,
) -> PlanDocument:
    """``layouts`` are name, plan and problem, ``best`` the name of the recommended one.

    ``exact``: stages by setting, where whole steps were traced. ``base``: the job of a search, the first layout
    otherwise.
    """
    plans = [(name, plan) for name, plan, _ in layouts if plan is not None]
    chosen = next((plan.recommended for name, plan in plans if name == best), None)
    return PlanDocument.of(
        settings=[SettingRow.of_row(row, name, plan.limits.needs) for name, plan in plans for row in plan.rows],
        recommended=chosen.text if chosen else None,
        recommended_layout=best if chosen else None,
        assumptions=tuple(dict.fromkeys(text for _, plan in plans for text in plan.assumptions)),
        layouts=[
            LayoutRow.of_plan(name, plan, base or plans[0][1].spec, with_sizes=base is not None or len(layouts) > 1)
            if plan
            else UnplannedLayout.of(layout=name, problem=problem)
            for name, plan, problem in layouts
        ],
        exact=[ExactSetting.of(recompute=text, stages=peaks) for text, peaks in (exact or {}).items()],
        notes=notes,
        search=search,
    )


def search_document(found: Searched, request: PlanRequest) -> SearchDocument:
    """Return the part of the document that only a search has; the document around it describes the best layouts."""
    return SearchDocument(
        num_layouts=found.num_layouts,
        interrupted=found.interrupted,
        layouts=dict(found.counts),
        best=tuple(_searched(each, each.row, request, found.base.spec) for each in found.best if each.row),
        pareto=tuple(_searched(each, row, request, found.base.spec) for each, row in found.pareto),
    )


def _searched(tried: Tried, row: Row, request: PlanRequest, base: ExperimentSpec) -> SearchedRow:
    assert row.prediction is not None
    time, pasted = row.prediction.time, to_paste(row.candidate.spec, base, with_sizes=True)
    return SearchedRow(
        layout=tried.name,
        recompute=row.text,
        peak_bytes=row.prediction.peak_bytes,
        step_time_s=time.likely_s if time else None,
        verdict=row.verdict,
        command=command(tried, row, request),
        bridge=pasted.bridge,
        megatron_lm=pasted.megatron_lm,
        without=pasted.without,
    )


def planned_document(
    planned: Planned, search: SearchDocument | None = None, base: ExperimentSpec | None = None
) -> PlanDocument:
    """Return all that one request planned. ``base``: the job whose layouts a search varied."""
    layouts = [(layout.name, layout.plan, layout.problem) for layout in planned.layouts]
    exact = {setting.text: setting.peaks for setting in planned.exact}
    made = plan_document(layouts, planned.best.name if planned.best else None, exact, planned.notes, search, base)
    return made.model_copy(
        update={
            "nearest_golden": planned.nearest_golden,
            "nearest_published": planned.nearest_published,
            "same_time_layouts": tuple(layout.name for layout in planned.same_time),
        }
    )


class CalibrationDocument(Document):
    """``mbr-perf plan --calibrate --json``."""

    path: Path
    calibration: Calibration
