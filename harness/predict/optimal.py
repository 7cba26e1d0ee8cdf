"""The plan of recompute by layer with the shortest predicted step, and the proof that no other of its space is faster.

A step lasts as long as its slowest stage, and the bubble as long as all stages on average. No stage's memory depends
on another one's layers. So every stage is made as fast as its memory allows, and of all plans that are as fast the one
with the least peak is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import numpy as np

from harness.experiment.experiment import ExperimentSpec
from harness.predict.communication import Exchange
from harness.predict.compose import Parameters
from harness.predict.mixes import Mix, Mixer, pruned
from harness.predict.model_states import Adam
from harness.predict.stage_search import Plans, Room, StageSearch

# Steps whose seconds differ by less, as a share, are as fast.
_SAME_TIME = 1e-9
# A stage with more plans is not made the slowest one on purpose.
_MOST_PLANS = 1 << 19


class Chosen(NamedTuple):
    """The settings of the layers of a stage, by chunk, with the seconds of a micro-batch and those of them backward."""

    settings: tuple[tuple[str, ...], ...]
    seconds: float
    returning: float


@dataclass(frozen=True)
class Solution:
    """The best plan, stage by stage. ``bound``: no plan of the space has a shorter step, in seconds."""

    stages: tuple[Chosen, ...]
    seconds: float
    bound: float

    @property
    def settings(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        return tuple(each.settings for each in self.stages)


class _Once(NamedTuple):
    """What a step takes once if a stage is the slowest: its exchanges, and the seconds of optimizer and messages."""

    exchanges: tuple[Exchange, ...]
    seconds: float = 0.0


@dataclass(frozen=True)
class Planner:
    """Finds the fastest plan of one request."""

    mixer: Mixer
    room: Room
    adam: Adam
    more_bytes: int = 0

    def solve(self) -> Solution | None:
        """Return the fastest plan that fits, of those with the least peak; None if none fits. TooManyError."""
        searches = self._searches(every=False)
        fastest: list[float] = []
        for search in searches:
            seconds = search.fastest()
            if seconds is None:
                return None
            fastest.append(seconds)
        worst, slow, bound = self._slowest(searches, fastest)
        chosen = [
            slow if rank == worst else _chosen(search, search.up_to(fastest[rank] * (1 + _SAME_TIME)))
            for rank, search in enumerate(searches)
        ]
        others = self._bubble * (sum(fastest) - fastest[worst])
        slowest = self._bubble * (sum(fastest) - max(fastest))
        return Solution(tuple(chosen), self._value(worst, *slow[1:]) + others, bound + slowest)

    def _slowest(self, searches: Sequence[StageSearch], fastest: Sequence[float]) -> tuple[int, Chosen, float]:
        """Return the slowest stage of the best plan, its mixes, and a bound of its part of a step.

        Another stage can be made the slowest one by recompute that it does not need. That pays where it exchanges less
        once in a step, and is tried where it could. Of stages with very many plans only the bound is known.
        """
        num_stages = range(len(fastest))
        first = max(num_stages, key=lambda rank: fastest[rank])
        slow = self._least(first, searches[first], fastest[first], 0.0, inf)
        assert slow
        best = first, slow, self._value(first, *slow[1:])
        bound, every = best[2], list[StageSearch]()
        for rank in num_stages:
            others = self._bubble * (fastest[first] - fastest[rank])
            least = self._least_value(rank, searches[rank], fastest[first]) + others
            if rank == first or least >= best[2]:
                continue
            every = every or self._searches(every=True)
            if every[rank].num_plans > _MOST_PLANS:
                bound = min(bound, least)
                continue
            slow = self._least(rank, every[rank], fastest[first], fastest[first], best[2] - others)
            if slow and self._value(rank, *slow[1:]) + others < best[2]:
                best = rank, slow, self._value(rank, *slow[1:]) + others
        return *best[:2], min(bound, best[2])

    def _least(self, rank: int, search: StageSearch, fastest: float, at_least: float, below: float) -> Chosen | None:
        """Return the mixes of a stage with the least part of a step, at most ``below``; of equal ones the smallest."""
        if below == inf:
            known = search.up_to(fastest * (1 + _SAME_TIME))
            below = float(self._values(rank, known).min())
        low, high = fastest, fastest * 2
        for _ in range(60):  # no plan that takes longer than `high` is better
            middle = (low + high) / 2
            is_worse = self._least_value(rank, search, middle) > below
            low, high = (low, middle) if is_worse else (middle, high)
        found = search.up_to(high * (1 + _SAME_TIME), at_least)
        values = self._values(rank, found)
        if not len(values):
            return None
        return _chosen(search, found.where(values <= values.min() * (1 + _SAME_TIME)))

    def _values(self, rank: int, plans: Plans) -> Any:
        return np.array([self._value(rank, *each) for each in zip(plans.seconds, plans.returning, strict=True)])

    def _value(self, rank: int, seconds: float, returning: float) -> float:
        """Return the part of a step that the slowest stage decides."""
        once = self._once[rank]
        exchanged = sum(each.left(returning, seconds - returning) for each in once.exchanges)
        return (self._num + self._bubble) * seconds + exchanged + once.seconds

    def _least_value(self, rank: int, search: StageSearch, seconds: float) -> float:
        """Return the least part of a step that a stage which takes so many seconds can decide."""
        (least, most), once = search.forward_ends, self._once[rank]
        exchanged = sum(each.left(seconds - least, most) for each in once.exchanges)
        return (self._num + self._bubble) * seconds + once.seconds + exchanged

    def _searches(self, *, every: bool) -> list[StageSearch]:
        """Return a search for each stage, among mixes that no other beats or among ``every`` mix."""
        overlaps = self._spec.kernels.overlap_moe_expert_parallel_comm
        kept: dict[int, tuple[Mix, ...]] = {}

        def of_chunk(mixes: tuple[Mix, ...]) -> tuple[Mix, ...]:
            if every or (overlaps and mixes[0].even.has_loss):  # what runs beside the loss decides there
                return mixes
            if id(mixes) not in kept:
                kept[id(mixes)] = pruned(mixes, self._num)
            return kept[id(mixes)]

        return [
            StageSearch(
                self._spec,
                rank,
                tuple(of_chunk(self.mixer.mixes(stage, chunk)) for chunk in stage),
                self.room,
                self.adam,
                self.more_bytes,
            )
            for rank, stage in enumerate(self.mixer.composer.stages)
        ]

    @property
    def _spec(self) -> ExperimentSpec:
        return self.mixer.composer.spec

    @cached_property
    def _num(self) -> int:
        return self._spec.num_microbatches

    @cached_property
    def _bubble(self) -> float:
        """Return how often the seconds of every stage count in the bubble."""
        stages = self.mixer.composer.stages
        return (len(stages) - 1) / len(stages[0]) / len(stages)

    @cached_property
    def _once(self) -> list[_Once]:
        """Return by stage what a step takes once. Parameters and messages are the same under any mixes."""
        clock, stages = self.mixer.clock, self.mixer.composer.stages
        if clock is None:
            return [_Once(())] * len(stages)
        found = []
        for stage in stages:
            costs = tuple(self.mixer.mixes(stage, chunk)[0].even for chunk in stage)
            parameters = Parameters.total(cost.parameters for cost in costs)
            seconds = clock.optimizer(parameters) + clock.efficiency.step_s + clock.messages(costs)
            found.append(_Once(clock.exchanges(parameters), seconds))
        return found


def _chosen(search: StageSearch, plans: Plans) -> Chosen:
    at = int(np.lexsort((plans.seconds, plans.peaks))[0])
    mixes = (own[number] for own, number in zip(search.chunks, plans.mixes[at], strict=True))
    return Chosen(tuple(mix.settings for mix in mixes), float(plans.seconds[at]), float(plans.returning[at]))
