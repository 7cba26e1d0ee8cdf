"""Shows the fastest plan of recompute by layer, and writes it as a file."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harness.experiment.recompute_plan import PlannedRecompute, grouped_layers
from harness.foreign.exporting import plan_script
from harness.plan.answer import answer_of, need_text, seconds_in_unit, size_in, size_unit, speed_texts
from harness.plan.run import Planned
from harness.predict.prediction import Verdict
from harness.predict.search import SAME_COST
from harness.show.json import Shown, Text, at
from harness.show.page import GAP, Column, Line, Page, Section, Span, answer_line, details, table
from harness.show.request_text import stop_words
from harness.units import format_percent, sentence

if TYPE_CHECKING:
    from harness.predict.fastest import Optimal

LAYOUT = "parallelism.pipeline_model_parallel_layout"


class PlanRow(Shown):
    """Layers in a row of one chunk with one setting."""

    stage: int
    chunk: int
    layers: int
    setting: str


def plan_rows(found: "Optimal") -> Iterator[PlanRow]:
    """Yield the rows of the plan, stage by stage."""
    for stage, chunks in enumerate(found.stages):
        for chunk, settings in enumerate(chunks):
            for group in grouped_layers(settings):
                yield PlanRow(stage=stage, chunk=chunk, layers=group.layers, setting=group.setting)


class OptimalDocument(Shown):
    """``plan --optimal``: the fastest plan by layer. Without one, ``reason`` says why and the other values are null.

    ``bound``: no plan of the space has a shorter step, in seconds, and with `--layers_too` none of another split.
    ``most_settings``: how many settings a chunk of the space may use. ``recompute``: for `--recompute`. ``layout``: the
    split that `--layers_too` found, empty for the request's; no split is faster than ``split_bound``.
    """

    step_time_s: float | None = at("row", "prediction", "time", "likely_s")
    step_time_range_s: tuple[float, float] | None = at("row", "prediction", "time", "range_s")
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
    split_reason: Text
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


def with_optimal(page: Page, planned: Planned) -> Page:
    """Return the page of a plan with the fastest plan by layer as its answer."""
    found, judged = planned.optimal, planned.judged
    assert found and judged
    if found.row is None or found.row.prediction is None:
        reasons = found.reason or "it could not be predicted", found.split_reason
        why = Line(f"No plan by layer: {'; '.join(filter(None, reasons))}", "doubt")
        return replace(page, blocks=(why, *page.blocks))
    split = f" --set '{LAYOUT}={found.layout}'" if found.layout else ""
    use = (
        Line(f"mbr-perf: add --plan_file plan.yaml, then --recompute plan.yaml{split}", whole=True),
        Line("Megatron-LM, Megatron-Bridge: add --plan_file plan.py, which says how to use it", whole=True),
    )
    notes = details("note", [sentence(text) for text in _notes(found)])
    more = (GAP, *use) if found.is_faster else ()
    blocks = (_section(found), GAP, "One setting for all layers:", *page.blocks, *more, notes)
    return replace(page, answer=_answer(found, planned), blocks=blocks)


def _answer(found: "Optimal", planned: Planned) -> Line:
    row, uniform = found.row, found.best_uniform
    assert row and row.prediction and planned.judged
    gain, (need, ends) = found.gain, need_text(planned.judged.plan, row, size_unit([row]))
    stops = stop_words(planned.judged.settled.notes)
    if uniform is None:
        faster = "; no setting for all layers fits"
    elif not found.is_faster:
        most = max(SAME_COST, (1 + (gain or 0.0)) * found.seconds / found.bound - 1)
        best = f"; no plan by layer is faster than {uniform.label}{_by_more_than(most)}"
        return answer_of(planned.judged.plan, more=(best,), keep=stops)
    elif gain is None:
        faster = f"; {format_percent((row.overhead or 0) - (uniform.overhead or 0))} FLOPs against {uniform.text}"
    else:
        faster = f"; {format_percent(-gain / (1 + gain))} time against {uniform.text}"
    proof = f"; no plan by layer is faster{_by_more_than(found.seconds / found.bound - 1)}"
    use = "Use the ", Span("plan by layer", "chosen"), need
    step, *speed = speed_texts(row, is_control=True) or ("",)
    keep = (step, faster, *(stops or (proof,)), ".")
    return answer_line(use, ends, step, *speed, faster, proof, *stops, ".", keep=keep)


def _by_more_than(share: float) -> str:
    return f" by more than {share * 100:.2g} %" if share > 1e-6 else ""


def _section(found: "Optimal") -> Section:
    assert found.row and found.row.prediction
    unit = size_unit([found.row])
    columns = "Stage", f"Peak {unit}", Column("Layers of each chunk", whole=True)
    rows = (
        (
            str(each.pp_rank),
            size_in(each.total, unit),
            " | ".join(" + ".join(f"{of.layers} {of.setting}" for of in grouped_layers(one)) or "-" for one in chunks),
        )
        for each, chunks in zip(found.row.prediction.stages, found.stages, strict=True)
    )
    ended = [Line(sentence(found.split_reason), "doubt")] if found.split_reason else []
    if time := found.row.prediction.time:
        _, ends, unit_s = seconds_in_unit(time)
        ended.append(Line(f"Step: {ends} {unit_s}", "dim"))
    return Section("Plan by layer", (table(columns, rows, right=columns[:2]), *ended))


def _notes(found: "Optimal") -> Iterator[str]:
    yield f"Searched: plans with at most {found.most_settings} settings in a chunk ({found.solved_in_s:.1f} s)"
    if found.split_bound:
        more = _by_more_than(found.seconds / found.split_bound - 1)
        yield f"No split of the layers is faster{more}, where chunks of a stage differ by at most one layer"


def plan_yaml(found: "Optimal") -> str:
    """Return the plan as `--recompute FILE` reads it."""
    lines = ["# A plan of recompute by layer, for one layout: mbr-perf plan --optimal"]
    lines += [f"# with --set '{LAYOUT}={found.layout}'"] if found.layout else []
    lines += ["recompute_plan:"]
    rows = (
        f'  - {{stage: {r.stage}, chunk: {r.chunk}, layers: {r.layers}, setting: "{r.setting}"}}'
        for r in plan_rows(found)
    )
    return "\n".join((*lines, *rows)) + "\n"


def write_plan(path: Path, planned: Planned) -> Line:
    """Write the plan; say so, or why there is none."""
    found = planned.optimal
    if found is None or not found.stages:
        return Line(f"No plan is written: {found.reason if found else 'nothing could be planned'}")
    stages = tuple(tuple(map(grouped_layers, chunks)) for chunks in found.stages)
    job = found.row.candidate.spec.slug if found.row else ""
    text = plan_script(PlannedRecompute(stages=stages), job) if path.suffix == ".py" else plan_yaml(found)
    from harness.show.svg import write_file

    write_file("--plan_file", path, text)
    return Line(f"Written: {path}", whole=True)
