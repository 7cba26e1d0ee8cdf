"""The least seconds of a step under any split of the layers: whole layers on every rank, and no recompute."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from math import inf
from typing import Any

import numpy as np

from harness.experiment.layout_text import Chunk
from harness.predict.mixes import Mixer
from harness.predict.trace_book import MissingTraceError

# Of models with more kinds of layers, or more layers of the rarer one, only the sum over all ranks is bounded.
_MOST_RARE = 4


@dataclass(frozen=True)
class SplitBound:
    """Splits of a request's layers over ``flat``, its virtual stages, that are not slower than ``known_s``.

    ``mixer``: of layers without recompute. A rank may hold any layers, also such as no split puts beside each other: so
    the bound is never too high.
    """

    mixer: Mixer
    flat: Sequence[Chunk]
    pp: int
    known_s: float

    @property
    def is_known(self) -> bool:
        """Return whether the model has one kind of layers, or few of a second one."""
        return len(set(self.mixer.composer.layer_kinds)) <= 2 and len(self._kinds[0]) <= _MOST_RARE

    def seconds(self) -> float:
        """Return a bound of the seconds of a step. The slowest rank decides, and all count in the bubble.

        Some rank takes at least the least time in which all ranks together can hold all layers.
        """
        vp, of_ranks = len(self.flat) // self.pp, [self._rank(rank) for rank in range(self.pp)]
        every = np.unique(np.concatenate([each[np.isfinite(each)] for each in of_ranks]))
        low, high = 0, len(every) - 1
        while low < high:
            middle = (low + high) // 2
            held = reduce(_together, [np.where(each <= every[middle], 0.0, inf) for each in of_ranks])
            low, high = (low, middle) if np.isfinite(held[-1, -1]) else (middle + 1, high)
        bubble = (self.pp - 1) / vp / self.pp * reduce(_together, of_ranks)[-1, -1]
        once = self.mixer.clock.efficiency.step_s if self.mixer.clock else 0.0
        return float(self._num * every[low] + bubble + once)

    def _rank(self, rank: int) -> Any:
        """Return the least seconds of a micro-batch with so many layers of both kinds; inf for too many."""
        found = reduce(_together, [self._chunk(chunk) for chunk in self.flat[rank :: self.pp]])
        return np.where(found <= self._most_s, found, inf)

    def _chunk(self, place: Chunk) -> Any:
        """Return the seconds of a chunk at this place with so many layers of the rarer kind and of the other one."""
        ends, (rare, usual) = (place.has_embedding, place.has_loss, place.mtp_layers), self._kinds
        if ends not in self._known:
            found = self._known[ends] = np.full((len(rare) + 1, len(usual) + 1), inf)
            for few in range(len(rare) + 1):
                for many in range(len(usual) + 1):
                    chunk = Chunk((*rare[:few], *usual[:many]), *ends)
                    with suppress(MissingTraceError):  # no split puts the embedding or the loss beside such a layer
                        found[few, many] = self.mixer.mixes((chunk,), chunk)[0].seconds
                    if self._most_s < found[few, many] < inf:
                        break
        return self._known[ends]

    @cached_property
    def _known(self) -> dict[object, Any]:
        return {}

    @cached_property
    def _num(self) -> int:
        return self.mixer.composer.spec.num_microbatches

    @cached_property
    def _most_s(self) -> float:
        return self.known_s / self._num

    @cached_property
    def _kinds(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the layers of the rarer kind, and those of the most frequent one."""
        kinds = self.mixer.composer.layer_kinds
        usual = max(set(kinds), key=kinds.count)
        both = [tuple(i for i, kind in enumerate(kinds) if (kind == usual) == same) for same in (False, True)]
        return both[0], both[1]


def _together(first: Any, second: Any) -> Any:
    """Return the least sums for each number of layers in both."""
    found = np.full(first.shape, inf)
    for few, many in np.argwhere(np.isfinite(first)):
        beside = found[few:, many:]
        np.minimum(beside, first[few, many] + second[: beside.shape[0], : beside.shape[1]], out=beside)
    return found
