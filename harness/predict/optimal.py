"""The plan of recompute by layer with the shortest predicted step, and the proof that no other of its space is faster.

No stage's memory depends on another one's layers. So every stage is made as fast as its memory allows, and of all
plans that are as fast the one with the least peak is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from typing import Any, NamedTuple, Self

import numpy as np

from harness.experiment.experiment import ExperimentSpec
from harness.predict.compose import ChunkCost, Parameters
from harness.predict.mixes import Mix, Mixer
from harness.predict.model_states import Adam
from harness.predict.stage_search import Plans, Room, StageSearch
from harness.predict.time_model import Clock, Exchange

# Steps whose seconds differ by less, as a share, are as fast.
SAME_TIME = 1e-9
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


class Once(NamedTuple):
    """What a step takes once if a stage is the slowest: its exchanges, and the seconds of optimizer and messages."""

    exchanges: tuple[Exchange, ...] = ()
    seconds: float = 0.0

    @classmethod
    def of(cls, clock: Clock | None, costs: tuple[ChunkCost, ...]) -> Self:
        """Return what a step takes once if a stage with chunks of these ``costs`` is the slowest."""
        if clock is None:
            return cls()
        parameters = Parameters.total(cost.parameters for cost in costs)
        seconds = clock.optimizer(parameters) + clock.efficiency.step_s + clock.messages(costs)
        return cls(clock.exchanges(parameters), seconds)


@dataclass(frozen=True)
class Slowest:
    """A stage as the slowest one, which decides a part of the step. ``num``: how often its seconds count in a step."""

    search: StageSearch
    once: Once
    num: float

    def least(self, fastest: float, at_least: float = 0.0, below: float = inf) -> Chosen | None:
        """Return the mixes with the least part of a step, at most ``below``; of equal ones the smallest."""
        if below == inf:
            known = self.search.up_to(fastest * (1 + SAME_TIME))
            below = float(self._values(known).min())
        low, high = fastest, fastest * 2
        for _ in range(60):  # no plan that takes longer than `high` is better
            middle = (low + high) / 2
            is_worse = self.least_part(middle) > below
            low, high = (low, middle) if is_worse else (middle, high)
        found = self.search.up_to(high * (1 + SAME_TIME), at_least)
        values = self._values(found)
        if not len(values):
            return None
        return chosen(self.search, found.where(values <= values.min() * (1 + SAME_TIME)))

    def _values(self, plans: Plans) -> Any:
        return np.array([self.part(*each) for each in zip(plans.seconds, plans.returning, strict=True)])

    def part(self, seconds: float, returning: float) -> float:
        """Return the part of a step that the stage decides."""
        exchanged = sum(each.left(returning, seconds - returning) for each in self.once.exchanges)
        return self.num * seconds + exchanged + self.once.seconds

    def least_part(self, seconds: float) -> float:
        """Return the least part of a step that the stage can decide if it takes so many seconds."""
        least, most = self.search.forward_ends
        exchanged = sum(each.left(seconds - least, most) for each in self.once.exchanges)
        return self.num * seconds + self.once.seconds + exchanged


@dataclass(frozen=True)
class Planner:
    """Finds the fastest plan of one request."""

    mixer: Mixer
    room: Room
    adam: Adam
    more_bytes: int = 0

    def solve(self) -> Solution | None:
        """Return the fastest plan that fits, of those with the least peak; None if none fits. UnsolvedError."""
        searches = self._searches(every=False)
        fastest: list[float] = []
        for search in searches:
            seconds = search.fastest()
            if seconds is None:
                return None
            fastest.append(seconds)
        worst, slow, part, bound = self._slowest(searches, fastest)
        stages = [
            slow if rank == worst else chosen(search, search.up_to(fastest[rank] * (1 + SAME_TIME)))
            for rank, search in enumerate(searches)
        ]
        others = self.bubble * (sum(fastest) - fastest[worst])
        slowest = self.bubble * (sum(fastest) - max(fastest))
        return Solution(tuple(stages), part + others, bound + slowest)

    def _slowest(self, searches: Sequence[StageSearch], fastest: Sequence[float]) -> tuple[int, Chosen, float, float]:
        """Return the slowest stage of the best plan, its mixes, its part of a step, and a bound of that.

        Another stage can be made the slowest one by recompute that it does not need. That pays where it exchanges less
        once in a step, and is tried where it could. Of stages with very many plans only the bound is known.
        """
        num_stages = range(len(fastest))
        first = max(num_stages, key=lambda rank: fastest[rank])
        deciding = self.deciding(searches[first])
        slow = deciding.least(fastest[first])
        assert slow
        best = first, slow, deciding.part(*slow[1:])
        bound, every = best[2], list[StageSearch]()
        for rank in num_stages:
            others = self.bubble * (fastest[first] - fastest[rank])
            least = self.deciding(searches[rank]).least_part(fastest[first]) + others
            if rank == first or least >= best[2]:
                continue
            every = every or self._searches(every=True)
            if prod(float(len(mixes)) for mixes in every[rank].chunks) > _MOST_PLANS:
                bound = min(bound, least)
                continue
            deciding = self.deciding(every[rank])
            slow = deciding.least(fastest[first], fastest[first], best[2] - others)
            if slow and deciding.part(*slow[1:]) + others < best[2]:
                best = rank, slow, deciding.part(*slow[1:]) + others
        return *best, min(bound, best[2])

    def _searches(self, *, every: bool) -> list[StageSearch]:
        """Return a search for each stage, among mixes that no other beats or among ``every`` mix."""
        mixer, found = self.mixer, list[StageSearch]()
        for rank, stage in enumerate(mixer.composer.stages):
            of_chunks = tuple(mixer.mixes(stage, each) for each in stage)
            found.append(self.search(rank, of_chunks if every else tuple(map(mixer.leading, of_chunks))))
        return found

    def search(self, rank: int, mixes: tuple[tuple[Mix, ...], ...]) -> StageSearch:
        """Return a search among these mixes of the chunks of a rank, with as many layers as the first ones."""
        num_layers = sum(len(each[0].settings) for each in mixes)
        return StageSearch(self._spec, rank, mixes, self.room, self.adam, self.more_bytes, num_layers)

    def deciding(self, search: StageSearch) -> Slowest:
        """Return a stage as the slowest one. Parameters and messages are the same under any mixes."""
        once = Once.of(self.mixer.clock, tuple(each[0].even for each in search.chunks))
        return Slowest(search, once, self.num + self.bubble)

    @property
    def _spec(self) -> ExperimentSpec:
        return self.mixer.composer.spec

    @property
    def num(self) -> int:
        """Return how often the seconds of the slowest stage count, beside the bubble."""
        return self._spec.num_microbatches

    @cached_property
    def bubble(self) -> float:
        """Return how often the seconds of every stage count in the bubble."""
        stages = self.mixer.composer.stages
        return (len(stages) - 1) / len(stages[0]) / len(stages)


def chosen(search: StageSearch, plans: Plans) -> Chosen:
    """Return the smallest of the plans."""
    at = int(np.lexsort((plans.seconds, plans.peaks))[0])
    mixes = (own[number] for own, number in zip(search.chunks, plans.mixes[at], strict=True))
    return Chosen(tuple(mix.settings for mix in mixes), float(plans.seconds[at]), float(plans.returning[at]))
