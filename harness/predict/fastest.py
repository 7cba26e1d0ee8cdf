"""The fastest plan of recompute by layer beside the uniform settings of a request."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.recompute import FullRecompute, NoRecompute, SelectiveRecompute, simplest
from harness.experiment.recompute_plan import FULL, PlannedRecompute, grouped_layers
from harness.experiment.software import Software
from harness.predict.allocator_settings import asked_settings
from harness.predict.mixes import Made, Mixer
from harness.predict.model_states import Adam, adam_of
from harness.predict.optimal import SAME_TIME, Planner, Solution
from harness.predict.prediction import BUILT_IN, Constants, Prediction
from harness.predict.ranges import spread_of
from harness.predict.reserved import ratios_of
from harness.predict.search import SAME_COST, Plan, Row, Traces, candidate_of, row_of
from harness.predict.stage_search import Room, UnsolvedError
from harness.predict.stages import Composer
from harness.predict.time_model import Clock

# A plan whose stages fit one by one, but not together, is sought again in less room, at most so often.
_MOST_TRIES = 12


@dataclass(frozen=True)
class Optimal:
    """The fastest plan; none for the ``reason``. ``bound``: no plan of the space is faster, in seconds.

    ``best_uniform``: the fastest setting for all layers that fits as surely. ``stages``: the setting of every layer.
    ``seconds`` of a CPU only compare. ``room``: what fits. ``layout``: a faster split than the request's; no split is
    faster than ``split_bound``. ``split_reason``: why not every split was searched; nothing is proven then.
    """

    row: Row | None
    stages: tuple[tuple[tuple[str, ...], ...], ...] = ()
    seconds: float = 0.0
    bound: float = 0.0
    best_uniform: Row | None = None
    most_settings: int = 0
    solved_in_s: float = 0.0
    reason: str = ""
    room: Room | None = None
    layout: str = ""
    split_bound: float = 0.0
    split_reason: str = ""

    @property
    def seconds_or_inf(self) -> float:
        return self.seconds if self.row else inf

    @property
    def is_proven(self) -> bool:
        """Return whether no plan of the space is faster, and not only none that was found."""
        return self.row is not None and not self.split_reason and self.bound >= self.seconds * (1 - 1e-6)

    @property
    def gain(self) -> float | None:
        """Return by how much the step of the best uniform setting is longer; None without one or without seconds."""
        if self.row is None or self.best_uniform is None:
            return None
        times = [row.prediction.time for row in (self.row, self.best_uniform) if row.prediction]
        return round(times[1].likely_s / times[0].likely_s - 1, 8) if times[0] and times[1] else None

    @property
    def is_faster(self) -> bool:
        """Return whether the plan is noticeably faster than the best uniform setting. True where none of these fits."""
        if self.row is None or self.best_uniform is None:
            return self.row is not None
        fewer = (self.best_uniform.overhead or 0) - (self.row.overhead or 0)
        return (fewer if self.gain is None else self.gain) > SAME_COST


def optimal(
    made: Plan,
    traces: Traces,
    implementation: Implementation,
    software: Software,
    constants: Constants = BUILT_IN,
    *,
    mixes: Made,
) -> Optimal:
    """Return the fastest plan for the layout of ``made``, from its rows; ``mixes``: known ones, to which this adds."""
    began, budget = time.monotonic(), made.limits.budget_bytes
    rows = made.predicted
    fitting = [row for row in rows if row.verdict == "FITS"]
    none_yet = Optimal(None, best_uniform=min(fitting, key=_seconds, default=None), reason=_why_not(made, rows))
    if none_yet.reason or budget is None or rows[0].prediction is None:
        return none_yet
    mixer = mixer_of(made, traces, implementation, software, constants, mixes)
    due, known = [_room(rows[0].prediction, budget, budget)], list[tuple[float, int, Solution, Room]]()
    none_yet = replace(
        none_yet, room=due[0], most_settings=mixer.most_settings, reason="none fits with its whole range"
    )
    for tried in range(_MOST_TRIES):
        try:
            for found, room in _solved(due, mixer, rows[0].prediction.adam, constants.allocator_bytes):
                known.append((found.seconds, -len(known), found, room))
        except UnsolvedError as error:
            return replace(none_yet, reason=str(error))
        if not known:
            none_yet = replace(none_yet, bound=inf, solved_in_s=time.monotonic() - began)
            return _no_slower(none_yet, made, mixer.composer)
        *_, found, room = known.pop(min(range(len(known)), key=lambda at: known[at][:2]))
        row = _row(made, found, mixer.composer, traces, constants)
        if row.prediction is None:
            return replace(none_yet, reason=row.reason)
        if row.verdict == "FITS":
            plan = replace(
                none_yet,
                row=row,
                reason="",
                stages=found.settings,
                seconds=found.seconds,
                bound=found.bound,
                solved_in_s=time.monotonic() - began,
                room=replace(room, most=(inf, inf)),
            )
            return _no_slower(plan, made, mixer.composer)
        due = _less(room, row.prediction) if tried else [_room(rows[0].prediction, budget, row.prediction.peak_bytes)]
    return none_yet


def _no_slower(found: Optimal, made: Plan, composer: Composer) -> Optimal:
    """Return the best setting for all layers as the plan where it is faster: its needs may be less than estimated."""
    rows = [row for row in made.predicted if row.verdict == "FITS" and _is_by_layer(row.candidate.spec)]
    rows = [row for row in rows if row.candidate.spec.parallelism == made.spec.parallelism]
    best = min(rows, key=_seconds, default=None)
    time_of = best.prediction.time if best and best.prediction else None
    if best is None or time_of is None or time_of.likely_s >= found.seconds_or_inf * (1 - SAME_TIME):
        return found
    layers, seconds = composer.with_recompute(best.candidate.spec.recompute), time_of.likely_s
    of_chunks = (map(layers.settings, stage) for stage in layers.stages)
    stages = tuple(tuple(tuple(each.text.partition(":")[0] for each in own) for own in stage) for stage in of_chunks)
    return replace(found, row=best, stages=stages, seconds=seconds, bound=min(found.bound, seconds), reason="")


def _is_by_layer(spec: ExperimentSpec) -> bool:
    """Return whether plans by layer have the setting: no checkpoints over several layers, or of MTP layers."""
    policy = spec.recompute
    if not isinstance(policy, FullRecompute) or policy.distribute_saved_activations:
        return not isinstance(policy, FullRecompute)
    return policy.method == "block" or (policy.num_layers == 1 and not spec.model.mtp_num_layers)


def mixer_of(
    made: Plan, traces: Traces, implementation: Implementation, software: Software, constants: Constants, mixes: Made
) -> Mixer:
    """Return what makes the mixes of a request. Arguments as of :func:`optimal`."""
    composer = Composer(made.spec, implementation, software).with_recompute(NoRecompute())
    adam = adam_of(made.spec, software)
    clock = None if made.spec.gpu_type.is_cpu else Clock(made.spec, constants.efficiency(made.spec.gpu), adam)
    return Mixer(composer, clock, _settings(made.predicted), traces.even, traces.uneven, mixes)


def _solved(due: Iterable[Room], mixer: Mixer, adam: Adam, allocator_bytes: int) -> Iterator[tuple[Solution, Room]]:
    for room in due:
        if found := Planner(mixer, room, adam, allocator_bytes).solve():
            yield found, room


def _less(room: Room, found: Prediction) -> list[Room]:
    """Return two smaller rooms that hold every plan that fits, and not this one: each bounds another of its peaks."""
    peak, uneven = room.most
    left = (room.budget_bytes - room.peak * found.peak_bytes) / room.uneven if room.uneven and room.peak else inf
    if left >= found.uneven_bytes:  # another rule than the room's says that it does not fit
        return [
            replace(room, most=(min(peak, found.peak_bytes - 1), uneven)),
            replace(room, most=(peak, min(uneven, found.uneven_bytes - 1))),
        ]
    middle = (left + found.uneven_bytes) / 2
    beside = (room.budget_bytes - room.uneven * middle) / room.peak
    return [replace(room, most=(min(peak, beside), uneven)), replace(room, most=(peak, min(uneven, middle)))]


def _seconds(row: Row) -> tuple[float, int]:
    assert row.prediction
    seconds = row.prediction.time.likely_s if row.prediction.time else row.overhead or 0.0
    return seconds, row.prediction.peak_bytes


def _why_not(made: Plan, rows: list[Row]) -> str:
    if not rows:
        return "no setting could be predicted"
    if made.spec.cuda_graph.impl != "none":
        return "CUDA graphs capture layers before a plan is set (--cuda_graph_impl none)"
    if made.spec.ddp.use_megatron_fsdp:
        return "Megatron-FSDP builds its units before a plan is set"
    if made.spec.offload.cpu_offloading_num_layers or made.spec.offload.offload_modules:
        return "offloading moves layers by their place, and a plan has no such places"
    return "the memory is not known" if made.limits.budget_bytes is None else ""


def _settings(rows: list[Row]) -> tuple[str, ...]:
    """Return what a layer may have, by the rules and traces of the uniform settings; what keeps the most comes last."""
    by_peak = sorted(rows, key=lambda row: row.prediction.peak_bytes if row.prediction else 0)
    policies = [row.candidate.spec.recompute for row in by_peak]
    singly = [policy for policy in policies if isinstance(policy, NoRecompute | SelectiveRecompute)]
    whole = [policy for policy in policies if isinstance(policy, FullRecompute)]
    return (*([FULL] if whole else []), *(policy.text for policy in singly))


def _room(known: Prediction, budget: int, peak_bytes: int) -> Room:
    """Return what fits with its whole range, as `Prediction.fits` has it for the class of jobs with such a peak."""
    spec = known.spec
    held = 1.0 if spec.gpu_type.is_cpu else ratios_of(spec, peak_bytes, asked_settings(spec)[0]).fits[2]
    _, spread = spread_of(spec, peak_bytes)
    higher = (
        known.range_bytes[1] - spread_of(spec, known.peak_bytes)[1].around(known.peak_bytes, known.uneven_bytes)[1]
    ) / known.peak_bytes
    if known.uneven_bytes > known.peak_bytes:
        return Room(budget, held - 1 + higher, 1 + spread.higher_uneven)
    return Room(budget, held + higher + spread.higher, 0.0)


def _row(made: Plan, found: Solution, composer: Composer, traces: Traces, constants: Constants) -> Row:
    implementation, software = composer.implementation, composer.software
    policy = PlannedRecompute(stages=tuple(tuple(map(grouped_layers, chunks)) for chunks in found.settings))
    control = made.control.prediction if made.control else None
    candidate = candidate_of(made.spec.model_copy(update={"recompute": simplest(policy)}), software, implementation)
    return row_of(candidate, composer, traces, software, constants, made.limits).compared_with(control)
