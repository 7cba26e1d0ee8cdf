"""Replays the first steps of the settings that a plan names, where the allocator may decide what fits."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

from harness.experiment.effective import Implementation, settled_implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import NoRecompute, canonical_text
from harness.experiment.software import Software
from harness.predict.allocator_blocks import OutOfDeviceMemoryError
from harness.predict.allocator_settings import AllocatorSettings, asked_settings, with_expandable_segments
from harness.predict.compose import ChunkCost
from harness.predict.draws import CONSTANT, Draw, Varied
from harness.predict.ledger import StageMemory
from harness.predict.limits import Limits
from harness.predict.prediction import Prediction, verdict
from harness.predict.rank_parts import MissingEventsError
from harness.predict.reserved import Held, device_bytes, estimated, first_steps, replay
from harness.predict.search import Plan, Row, Traces, candidate_of, cost_of, judged, recommended
from harness.predict.stages import Composer
from harness.predict.step_history import StepHistory, step_history
from harness.predict.step_modules import by_module

# Settings of a layout whose steps are replayed: a replay costs about a fifth of all predictions together.
_MOST_REPLAYED = 3


def with_replays(
    made: Plan, traces: Traces, software: Software, varied: Varied = CONSTANT, named: Sequence[str] = ()
) -> Plan:
    """Return the plan with the first steps of the recommended, asked, riskier and a few ``named`` rows replayed."""
    composer, draws = composer_of(made.spec, software), varied.draws(made.spec)
    named = named if len(named) <= _MOST_REPLAYED else ()
    for _ in range(_MOST_REPLAYED):
        left = [row for row in made.rows if row.prediction and not row.is_weighed]
        decisive = made.recommended, made.riskier
        due = [
            row
            for row in left
            if any(row is each for each in decisive) or _is_in_doubt(row, made, named, always=bool(draws))
        ]
        if not due:
            break
        made = _with_rows(made, {row.text: _replayed(row, made.limits, composer, traces, draws) for row in due})
    answered = {row.text: _beside_native(row, made.limits, composer, traces, draws) for row in _in_answer(made)}
    made = _with_rows(made, answered)
    return _with_cure(made, traces, software, composer, draws)


def _in_answer(made: Plan) -> list[Row]:
    """Return the replayed settings that fit and that the answer names: the recommended one, and that of the request."""
    fitting = (row for row in made.rows if row.is_weighed and row.verdict != "OOM")
    return [row for row in fitting if row is made.recommended or _is_asked(row, made)]


def _with_cure(made: Plan, traces: Traces, software: Software, composer: Composer, draws: tuple[Draw, ...]) -> Plan:
    """Replay with expandable segments what these may make the best setting, until one fits."""
    cures = list[Row]()
    for row in sorted(made.predicted, key=cost_of):
        if len(cures) == _MOST_REPLAYED or any(each.verdict == "FITS" for each in cures):
            break
        if cured := _with_segments(row, made, software, composer.implementation):
            cures.append(_replayed(cured, made.limits, composer, traces, draws))
            own = row if row.is_weighed else _replayed(row, made.limits, composer, traces, draws)
            made = _with_rows(made, {row.text: replace(own, otherwise=cures[-1].prediction)})
    best = recommended((*filter(None, [made.recommended]), *cures), made.limits)
    return made if best is made.recommended else replace(made, cure=best)


def _with_rows(made: Plan, known: Mapping[str, Row]) -> Plan:
    rows = tuple(known.get(row.text, row) for row in made.rows)
    return replace(made, rows=rows, recommended=recommended(rows, made.limits))


def _with_segments(row: Row, made: Plan, software: Software, implementation: Implementation) -> Row | None:
    """Return a setting with expandable segments, not replayed yet; None where these cannot make it the best one."""
    own, found, budget = row.candidate.spec, row.prediction, made.limits.budget_bytes
    spec = with_expandable_segments(own)
    settings, text = asked_settings(spec)
    if found is None or budget is None or own.gpu_type.is_cpu or settings == asked_settings(own)[0]:
        return None
    hoped = replace(row, verdict=verdict((0, found.peak_bytes, found.range_bytes[1]), budget))
    if recommended((*filter(None, [made.recommended]), hoped), made.limits) is not hoped:
        return None
    candidate = candidate_of(spec, software, implementation)
    found = replace(found, spec=spec, held=tuple(estimated(spec, stage, settings) for stage in found.stages))
    return replace(row, candidate=candidate, prediction=found, allocator=text) if candidate.is_legal else None


def composer_of(spec: ExperimentSpec, software: Software) -> Composer:
    """Return what composes a job's steps on this software."""
    return Composer(spec, settled_implementation(spec), software)


def row_history(row: Row, traces: Traces, software: Software) -> StepHistory | None:
    """Return the first steps of the fullest stage's first rank; None where its requests are not known or refused."""
    found = row.prediction
    if found is None or traces.requests is None:
        return None
    own, place = composer_of(found.spec, software), found.stages.index(found.worst)
    try:
        steps = first_steps(own, found.worst, own.chunk_costs(traces.even)[place], traces.requests)
        steps = steps._replace(labels=by_module(steps.labels, own, found.worst.pp_rank, traces.requests))
        return step_history(steps, asked_settings(found.spec)[1], device_bytes(found.spec))
    except (MissingEventsError, OutOfDeviceMemoryError):
        return None


def _is_asked(row: Row, made: Plan, named: Sequence[str] = ()) -> bool:
    """Return whether the row is the setting of the request, or one of those ``named``."""
    return canonical_text(row.candidate.spec.recompute) in {canonical_text(made.spec.recompute), *named}


def _is_in_doubt(row: Row, made: Plan, named: Sequence[str], *, always: bool) -> bool:
    """Return whether it is asked for or named, or the allocator may decide about the one without recompute."""
    budget, is_asked = made.limits.budget_bytes, _is_asked(row, made, named)
    if row.prediction is None or not (is_asked or row.text == NoRecompute().text):
        return False
    may_decide = budget is not None and row.prediction.peak_bytes <= budget < row.prediction.fits[2]
    return always or is_asked or may_decide


def _beside_native(row: Row, limits: Limits, composer: Composer, traces: Traces, draws: tuple[Draw, ...]) -> Row:
    """Replay a setting without its expandable segments as well, where that may decide."""
    found, budget = row.prediction, limits.budget_bytes
    assert found
    settings, _ = asked_settings(found.spec)
    if budget is None or not settings.expandable_segments:
        return row
    other = replace(settings, expandable_segments=False)
    guessed = replace(found, held=tuple(estimated(found.spec, stage, other) for stage in found.stages))
    if verdict(guessed.fits, budget) == row.verdict:
        return row
    own = composer.with_recompute(row.candidate.spec.recompute)
    guessed = replace(found, held=_held(guessed, own, other, traces, budget, draws))
    return row if verdict(guessed.fits, budget) == row.verdict else replace(row, otherwise=guessed)


def _replayed(row: Row, limits: Limits, composer: Composer, traces: Traces, draws: tuple[Draw, ...]) -> Row:
    found = row.prediction
    assert found
    if found.spec.gpu_type.is_cpu:
        return replace(row, is_weighed=True)
    own = composer.with_recompute(row.candidate.spec.recompute)
    settings, _ = asked_settings(found.spec)
    found = replace(found, held=_held(found, own, settings, traces, limits.budget_bytes, draws))
    found = replace(found, draws_routing=found.reserved_source == "replayed" and any(draw.routing for draw in draws))
    found_verdict, certain = judged(found, limits)
    return replace(row, prediction=found, verdict=found_verdict, is_certain=certain, is_weighed=True)


def weighed(found: Prediction, software: Software, traces: Traces) -> Prediction:
    """Return the prediction with the first steps of its fullest stage replayed where their requests are known."""
    settings, _ = asked_settings(found.spec)
    composer = composer_of(found.spec, software)
    return replace(found, held=_held(found, composer, settings, traces, None))


def _held(
    found: Prediction,
    composer: Composer,
    settings: AllocatorSettings,
    traces: Traces,
    budget: int | None,
    draws: tuple[Draw, ...] = (),
) -> tuple[Held, ...]:
    """Replay the fullest stage, and others that seem fuller, or may be and exceed the budget, where there is one.

    With ``draws`` also those that may need more than the fullest one's: others get its share of what they hold.
    """
    held = [*found.held]
    costs = composer.chunk_costs(traces.even)
    most = 0 if budget is None else budget - (found.range_bytes[1] - found.peak_bytes)
    fits, least, share, is_over = 0, 0.0 if draws else inf, 1.0, False
    for nth, place in enumerate(sorted(range(len(held)), key=lambda at: -held[at].fits[2])):
        stage = found.stages[place]
        held[place] = _at_share(held[place], stage, share)
        low, likely, high = held[place].fits
        if is_over or (nth and high <= most and likely <= fits and low <= least):
            continue
        held[place] = stage_held(composer, stage, costs[place], settings, traces, draws)
        fits, most = max(fits, held[place].fits[1]), max(most, held[place].fits[2])
        is_over = budget is not None and held[place].fits[0] > budget
        if drawn := held[place].drawn:
            least = max(least, drawn.fits_bytes[0])
            share = min(share, 1 - (stage.total - drawn.peak_bytes[0]) / _varying(stage))
    return tuple(held)


def _varying(stage: StageMemory) -> int:
    return stage.activations + stage.logits + stage.transient


def _at_share(held: Held, stage: StageMemory, share: float) -> Held:
    """Return it with lower ends for this share of the tokens."""
    less = round(_varying(stage) * (1 - share))
    in_time, fits = ((low - less, likely, high) for low, likely, high in (held.in_time, held.fits))
    return replace(held, in_time=in_time, fits=fits)


def stage_held(
    composer: Composer,
    stage: StageMemory,
    costs: tuple[ChunkCost, ...],
    settings: AllocatorSettings,
    traces: Traces,
    draws: tuple[Draw, ...] = (),
) -> Held:
    """Replay the first steps of a stage; estimate by the class of the job where its requests are not known."""
    if traces.requests is not None:
        with suppress(MissingEventsError):
            return replay(composer, stage, costs, settings, traces.requests, draws)
    return estimated(composer.spec, stage, settings)
