"""JSON of a plan, of its calibration and of exact traces."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import ConfigDict

from harness.experiment.experiment import ExperimentSpec
from harness.foreign.exporting import to_paste
from harness.plan.nearest import Nearest
from harness.plan.optimal import PlanRow, plan_rows
from harness.plan.request import PlanRequest
from harness.plan.run import Layout, Planned
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
from harness.predict.exact import ExactSetting
from harness.predict.ledger import PeakName, StageMemory
from harness.predict.prediction import Verdict
from harness.predict.reserved import Drawn, Held
from harness.predict.search import Plan, Row
from harness.records.calibration import Calibration
from harness.records.prediction import Source, StagePrediction
from harness.show.json import Document, Shown, Text, at

if TYPE_CHECKING:
    from harness.predict.fastest import Optimal


class StageRow(StagePrediction):
    """Peak of one pipeline stage with all candidates for it, in bytes."""

    model_config = ConfigDict(from_attributes=True)

    peaks: dict[PeakName, int]
    reserved_bytes: int | None = None
    fits_bytes: int | None = None
    reserved_source: Source | None = None

    @classmethod
    def of_stage(cls, stage: StageMemory, held: Held) -> Self:
        """Return the row of a stage."""
        return cls.model_validate(stage, from_attributes=True).model_copy(
            update={"reserved_bytes": held.reserved[1], "fits_bytes": held.fits[1], "reserved_source": held.source}
        )


_SIZES = [f"{name}_{what}" for name in ("reserved", "fits", "device") for what in ("bytes", "range_bytes")]


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
    graph_pool_bytes: int | None = at("prediction", "worst", "pool")
    host_bytes: int | None = at("prediction", "host_bytes")
    reserved_bytes: int | None
    reserved_range_bytes: tuple[int, int] | None
    fits_bytes: int | None
    fits_range_bytes: tuple[int, int] | None
    reserved_source: Source | None = at("prediction", "reserved_source")
    drawn: Drawn | None = at("prediction", "drawn")
    device_bytes: int | None
    device_range_bytes: tuple[int, int] | None
    worst_stage: int | None = at("prediction", "worst", "pp_rank")
    fullest_stage: int | None = at("prediction", "fullest", "pp_rank")
    peak: str | None = at("prediction", "worst", "peak")
    stages: tuple[StageRow, ...] = ()
    step_time_s: float | None = at("prediction", "time", "likely_s")
    step_time_range_s: tuple[float, float] | None = at("prediction", "time", "range_s")
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
        found, sizes = row.prediction, dict[str, object]()
        device = [end + needs.outside_bytes for end in found.reserved] if found else []
        for name, ends in (("reserved", found.reserved), ("fits", found.fits), ("device", device)) if found else ():
            sizes |= {f"{name}_bytes": ends[1], f"{name}_range_bytes": (ends[0], ends[2])}
        stages = zip(found.stages, found.held, strict=True) if found else ()
        return cls.of(
            row,
            layout=layout,
            inert_modules=tuple(row.candidate.inert_modules),
            stages=[StageRow.of_stage(*each) for each in stages],
            **dict.fromkeys(_SIZES) | sizes,
            verdict_is_certain=row.is_certain if row.verdict else None,
        )


class PasteRow(Shown):
    """One recommended setting in words of other programs: overrides of Megatron-Bridge, arguments of Megatron-LM.

    ``without``: arguments of Megatron-LM that must go. ``environment``: options of mbr-perf for variables.
    """

    recompute: str
    bridge: str
    megatron_lm: str
    without: tuple[str, ...]
    environment: Text


class LayoutRow(Shown):
    """What was planned for one layout, and with which limits. ``cure``: the better setting of the allocator, if any."""

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
    cure: SettingRow | None
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
            plan,
            layout=layout,
            not_recommended_because=why_none(plan),
            safe_instead=safe_instead(plan),
            riskier_because=riskier_text(plan),
            modules_by_price=module_worths(plan),
            advice=advice(plan),
            same_time=tuple(row.text for row in plan.same_time),
            cure=SettingRow.of_row(plan.cure, layout, plan.limits.needs) if plan.cure else None,
            to_paste=[PasteRow.of(each, recompute=text) for text, each in pasted],
        )


class UnplannedLayout(Shown):
    """A layout that could not be planned, and why."""

    layout: Text = at("name")
    problem: str


class SearchedRow(Shown):
    """One setting of one layout that a search found. ``command`` runs it; the others set it in other programs."""

    layout: str
    recompute: str = at("text")
    peak_bytes: int = at("prediction", "peak_bytes")
    step_time_s: float | None = at("prediction", "time", "likely_s")
    verdict: Verdict | None
    command: str
    bridge: str
    megatron_lm: str
    without: tuple[str, ...]


class SearchDocument(Shown):
    """``plan --search``: ``layouts`` of ``num_layouts`` by how they ended, the best, and the Pareto set.

    ``interrupted``: it ended early; ``is_time_up``: by `--max_minutes`. ``too_few``: numbers of GPUs into which nothing
    fits.
    """

    num_layouts: int
    interrupted: bool
    is_time_up: bool
    too_few: tuple[int, ...] = ()
    layouts: dict[str, int]
    best: tuple[SearchedRow, ...]
    pareto: tuple[SearchedRow, ...]


class OptimalDocument(Shown):
    """``plan --optimal``: the fastest plan by layer. Without one, ``reason`` says why and the other values are null.

    ``bound``: no plan of the space has a shorter step, in seconds; ``most_settings``: how many settings a chunk of the
    space may use. ``recompute``: the plan as `--recompute` takes it. ``layout``: the split of layers that
    `--layers_too` found as `pipeline_model_parallel_layout`; empty for the request's. No split is faster than
    ``split_bound``.
    """

    step_time_s: float | None = at("row", "prediction", "time", "likely_s")
    bound: float | None
    proven: bool = at("is_proven")
    gain: float | None
    best_uniform: str | None = at("best_uniform", "text")
    peak_bytes: int | None = at("row", "prediction", "peak_bytes")
    most_settings: int
    solved_in_s: float
    reason: Text
    recompute: str | None = at("row", "text")
    verdict: Verdict | None = at("row", "verdict")
    layout: Text
    split_bound: float | None
    peaks_bytes: tuple[int, ...]
    stages: tuple[PlanRow, ...]

    @classmethod
    def of_optimal(cls, found: "Optimal") -> Self:
        """Return what a plan consists of."""
        prediction = found.row.prediction if found.row else None
        return cls.of(
            found,
            bound=found.bound if prediction and prediction.time else None,
            split_bound=found.split_bound if found.split_bound and prediction and prediction.time else None,
            peaks_bytes=[stage.total for stage in prediction.stages] if prediction else (),
            stages=tuple(plan_rows(found)),
        )


class PlanDocument(Document):
    """``mbr-perf plan --json``. ``notes``: on how the first layout was settled.

    ``same_time_layouts``: layouts that are as fast as the recommended one, as far as predictions can tell.
    """

    settings: tuple[SettingRow, ...]
    recommended: str | None = at("best", "row", "text")
    recommended_layout: Text = at("best", "name")
    same_time_layouts: tuple[str, ...] = ()
    assumptions: tuple[str, ...]
    layouts: tuple[LayoutRow | UnplannedLayout, ...]
    exact: tuple[ExactSetting, ...]
    notes: tuple[str, ...]
    search: SearchDocument | None = None
    optimal: OptimalDocument | None = None
    nearest_golden: Nearest | None = None

    def rows(self) -> list[Mapping[str, object]]:
        """One for each setting of each layout, without its stages."""
        return [row.model_dump(exclude={"stages"}) for row in self.settings]


def search_document(found: Searched, request: PlanRequest) -> SearchDocument:
    """Return the part of the document that only a search has; the document around it describes the best layouts."""

    def row(tried: Tried, row: Row) -> SearchedRow:
        pasted = to_paste(row.candidate.spec, found.base.spec, with_sizes=True)
        return SearchedRow.of(row, pasted, layout=tried.name, command=command(tried, row, request))

    return SearchDocument.of(
        found,
        layouts=dict(found.counts),
        best=[row(each, each.row) for each in found.best if each.row],
        pareto=[row(*each) for each in found.pareto],
    )


def planned_document(
    planned: Planned, search: SearchDocument | None = None, base: ExperimentSpec | None = None
) -> PlanDocument:
    """Return all that one request planned. ``base``: the job whose layouts a search varied."""
    plans = [(layout.name, layout.plan) for layout in planned.made]
    with_sizes = base is not None or len(planned.layouts) > 1
    return PlanDocument.of(
        planned,
        settings=[SettingRow.of_row(row, name, plan.limits.needs) for name, plan in plans for row in plan.rows],
        same_time_layouts=[layout.name for layout in planned.same_time],
        assumptions=tuple(dict.fromkeys(text for _, plan in plans for text in plan.assumptions)),
        layouts=[
            LayoutRow.of_plan(layout.name, layout.plan, base or plans[0][1].spec, with_sizes=with_sizes)
            if isinstance(layout, Layout)
            else UnplannedLayout.of(layout)
            for layout in planned.layouts
        ],
        search=search,
        optimal=OptimalDocument.of_optimal(planned.optimal) if planned.optimal else None,
    )


class CalibrationDocument(Document):
    """``mbr-perf plan --calibrate --json``."""

    path: Path
    calibration: Calibration
