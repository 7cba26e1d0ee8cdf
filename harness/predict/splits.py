"""The fastest split of the layers over pipeline stages, and a bound that no split is below.

The seconds of a rank depend only on the layers that it holds. A dynamic program goes through the ranks by the layers
placed so far. At first it uses the seconds of a rank without recompute, then those of a linear relaxation, then exact
ones. It improves the ranks of the best way until all of these have exact seconds.
"""

import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from math import inf
from typing import NamedTuple

from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import chunks
from harness.experiment.layout_text import Chunk, write_layout
from harness.experiment.recompute import NoRecompute
from harness.experiment.software import Software
from harness.predict.fastest import Optimal, mixer_of, optimal
from harness.predict.mixes import MOST_MIXES, Made, Mix, Mixer
from harness.predict.optimal import SAME_TIME, Planner, Slowest, chosen
from harness.predict.prediction import Constants
from harness.predict.search import Plan, Traces
from harness.predict.stage_search import Room, StageSearch, UnsolvedError, least_sum
from harness.predict.trace_book import MissingTraceError

Sizes = tuple[int, ...]  # decoder layers of each virtual stage: through all ranks of a chunk, then the next chunk


@dataclass(eq=False)
class Held:
    """What a rank may hold: its ``layers``, and what each chunk may have of them. Layers of a kind have one number.

    ``seconds``: the least of a micro-batch; ``part``: the least part of a step as the slowest rank; ``longest``: with
    the most recompute; ``sizes``: layers of each chunk, once exact. ``is_final``: it cannot be made more exact.
    """

    rank: int
    chunks: tuple[tuple[Chunk, ...], ...]
    layers: tuple[int, ...]
    seconds: float = inf
    part: float = 0.0
    longest: float = inf
    search: StageSearch | None = None
    slowest: Slowest | None = None
    sizes: Sizes = ()
    is_final: bool = False


class Way(NamedTuple):
    """What all ranks hold, and the seconds of a step."""

    seconds: float
    ranks: tuple[Held, ...] = ()


_Placed = tuple[int, int]  # layers of the kind that comes first where chunks are interleaved, and all layers


@dataclass(frozen=True)
class SplitSearch:
    """Splits of a request's layers over ``flat``, its virtual stages, that are not slower than ``known_s``.

    The bubble of the time model is that of equal chunks. So chunks of a rank differ by at most one layer, for which an
    end or an MTP layer may stand. Interleaved, layers of another kind come first, and lie in the first chunks.
    """

    planner: Planner
    flat: Sequence[Chunk]
    known_s: float
    _held: dict[object, Held] = field(default_factory=dict)
    _chunks: dict[Chunk, float] = field(default_factory=dict)
    _afterwards: dict[object, list[tuple[Held, _Placed]]] = field(default_factory=dict)

    @property
    def why_not(self) -> str:
        """Return why splits cannot be searched; empty where they can."""
        if not self._most_layers or inf in map(self._of_chunk, self.flat):
            return "a chunk without recompute has no trace"
        is_known = self._vp == 1 or len({*self._layers[self._num_first :]}) == 1
        return "" if is_known else "interleaved chunks have layers of two kinds in turn"

    def best(self, *, is_exact: bool = False) -> Way:
        """Return the fastest way by the seconds known so far, or only by exact ones; infinite seconds without one."""
        self._next(0, (0, 0))
        among = {held for held in self._held.values() if held.seconds < inf and (held.sizes or not is_exact)}
        found, most = Way(inf), dict.fromkeys(range(self._pp), -len(self._layers))
        shares = [held.seconds / len(held.layers) for held in among if held.layers]
        least_bubble = self.planner.bubble * len(self._layers) * min(shares, default=0.0)
        for slowest, group in groupby(sorted(among, key=_seconds), _seconds):
            if self.planner.num * slowest + least_bubble >= found.seconds:
                break
            most |= {held.rank: max(most[held.rank], len(held.layers)) for held in group}
            if sum(most.values()) >= len(self._layers):
                found = min(found, self._way(among, slowest), key=lambda way: way.seconds)
        return found

    def refine(self, held: Held) -> None:
        """Make what is known of a rank that holds this more exact."""
        try:
            if held.search is None:
                held.search = self.planner.search(held.rank, tuple(self._mixes(held)))
                held.seconds = max(held.seconds, held.search.least_s)
            else:
                self._solve(held, held.search)
        except (UnsolvedError, MissingTraceError):
            held.is_final = True

    def _way(self, among: Set[Held], slowest: float) -> Way:
        """Return the best way whose ranks take at most so many seconds, and one of them as many."""
        ways: dict[tuple[_Placed, bool], Way] = {((0, 0), False): Way(0.0)}
        for rank in range(self._pp):
            found: dict[tuple[_Placed, bool], Way] = {}
            for (placed, is_decided), way in ways.items():
                for held, after in self._next(rank, placed):
                    if held not in among or held.seconds > slowest:
                        continue
                    choices = [(is_decided, way.seconds + self.planner.bubble * held.seconds)]
                    if not is_decided:
                        choices.append((True, way.seconds + self._part(held, slowest)))
                    for decides, seconds in choices:
                        if (after, decides) not in found or seconds < found[after, decides].seconds:
                            found[after, decides] = Way(seconds, (*way.ranks, held))
            ways = found
        return ways.get((self._all, True), Way(inf))

    def _part(self, held: Held, seconds: float) -> float:
        """Return the least part of a step that a rank decides if it takes at least so many seconds."""
        if held.slowest is None:
            return (self.planner.num + self.planner.bubble) * seconds
        return max(held.part, held.slowest.least_part(seconds)) if seconds <= held.longest else inf

    def _next(self, rank: int, placed: _Placed) -> list[tuple[Held, _Placed]]:
        """Return what a rank may hold after the layers of those before it, with all layers that are placed then."""
        if (rank, placed) not in self._afterwards:
            is_last = rank == self._pp - 1
            self._afterwards[rank, placed] = [
                (held, after)
                for held, after in self._choices(rank, *placed)
                if (after == self._all if is_last else self._next(rank + 1, after))
            ]
        return self._afterwards[rank, placed]

    def _choices(self, rank: int, first: int, used: int) -> Iterator[tuple[Held, _Placed]]:
        least = len(self._layers) - used - (self._pp - 1 - rank) * self._most_layers
        for num_first in range(self._num_first - first + 1):
            is_whole = first + num_first < self._num_first
            for num in range(max(num_first, least), min(len(self._layers) - used, self._most_layers) + 1):
                if self._vp == 1:
                    layers = self._layers[used : used + num]
                    every = [self._known(rank, [[replace(self.flat[rank], layers=layers)]], layers)]
                else:
                    every = [*self._interleaved(rank, num_first, num, num_first if is_whole else num)]
                yield from ((held, (first + num_first, used + num)) for held in every if held.seconds <= self._most_s)

    def _interleaved(self, rank: int, num_first: int, num: int, most: int) -> Iterator[Held]:
        """Yield ways to hold ``num`` layers. Those of the first kind lie in the first chunk of at ``most`` layers."""
        places, usual, first = self.flat[rank :: self._pp], self._layers[-1:], self._layers[:num_first]
        ends = [place.has_embedding + place.has_loss + place.mtp_layers for place in places]
        fronts = (first, *((),) * (self._vp - 1))
        for least in range(max(0, num - any(ends)) // self._vp, (num + sum(ends)) // self._vp + 1):
            sizes = [[*range(max(0, least - fewer), least + 2)] for fewer in ends]
            sizes[0] = [size for size in sizes[0] if num_first <= size <= most]
            chunks = [
                [replace(place, layers=front + usual * (size - len(front))) for size in each]
                for place, front, each in zip(places, fronts, _possible(sizes, num), strict=False)
            ]
            if chunks and all(chunks):
                yield self._known(rank, chunks, first + usual * (num - num_first))

    def _known(self, rank: int, chunks: Sequence[Sequence[Chunk]], layers: tuple[int, ...]) -> Held:
        """Return what a rank may hold, at first with its least seconds without recompute."""
        kept = tuple(tuple(each for each in chunk if self._of_chunk(each) < inf) for chunk in chunks)
        if (rank, kept, layers) not in self._held:
            least = [{len(each.layers): self._of_chunk(each) for each in chunk} for chunk in kept]
            self._held[rank, kept, layers] = Held(rank, kept, layers, least_sum(least, len(layers)))
        return self._held[rank, kept, layers]

    def _of_chunk(self, chunk: Chunk) -> float:
        if chunk not in self._chunks:
            try:
                self._chunks[chunk] = self._without.mixes((chunk,), chunk)[0].seconds
            except MissingTraceError:  # no split puts the embedding or the loss beside such a layer
                self._chunks[chunk] = inf
        return self._chunks[chunk]

    @cached_property
    def _without(self) -> Mixer:
        return replace(self.planner.mixer, settings=(NoRecompute().text,), made={})

    def _solve(self, held: Held, search: StageSearch) -> None:
        held.is_final, seconds = True, search.fastest()
        held.seconds = inf if seconds is None else seconds
        if seconds is None:
            return
        slowest = self.planner.deciding(search)
        fastest = chosen(search, search.up_to(seconds * (1 + SAME_TIME)))
        held.sizes = tuple(
            len(own) - chunk[0].mtp_layers for own, chunk in zip(fastest.settings, held.chunks, strict=True)
        )
        if best := slowest.least(seconds):
            held.slowest, held.part = slowest, slowest.part(*best[1:])
            longest = [
                {len(each.layers): -max(mix.seconds for mix in self._of_stage(held, each)) for each in chunk}
                for chunk in held.chunks
            ]
            held.longest = -least_sum(longest, len(held.layers)) * (1 + SAME_TIME)

    def _of_stage(self, held: Held, chunk: Chunk) -> tuple[Mix, ...]:
        return self.planner.mixer.mixes((Chunk(held.layers),), chunk)

    def _mixes(self, held: Held) -> Iterator[tuple[Mix, ...]]:
        """Yield the mixes of each chunk, at first those of chunks that together hold all layers. UnsolvedError."""
        left = len(held.layers) - sum(len(chunk[0].layers) for chunk in held.chunks)
        for chunk in held.chunks:
            more = min(left, len(chunk) - 1)
            left -= more
            every = [self._of_stage(held, each) for each in (chunk[more], *chunk[:more], *chunk[more + 1 :])]
            if any(len(mixes) > MOST_MIXES for mixes in every):
                raise UnsolvedError
            yield tuple(mix for mixes in every for mix in self.planner.mixer.leading(mixes))

    @property
    def left_out_s(self) -> float:
        """Return seconds that no split is below which this leaves out, because a rank would take too long."""
        return (self.planner.num + self.planner.bubble) * self._most_s

    @cached_property
    def _most_s(self) -> float:
        """Return the most seconds of a rank: what is known, or twice the mean of all without recompute."""
        if self.known_s < inf:
            return self.known_s / (self.planner.num + self.planner.bubble)
        return 2 * sum(map(self._of_chunk, self.flat)) / self._pp

    @cached_property
    def _most_layers(self) -> int:
        """Return how many layers a rank may hold of the kind that takes the least time, without ends."""
        every = (Chunk((layer,) * num) for layer in {*self._layers} for num in range(1, len(self._layers) + 1))
        return max((len(chunk.layers) for chunk in every if self._of_chunk(chunk) <= self._most_s), default=0)

    @property
    def _vp(self) -> int:
        return len(self.flat) // self._pp

    @property
    def _pp(self) -> int:
        return len(self.planner.mixer.composer.stages)

    @cached_property
    def _layers(self) -> tuple[int, ...]:
        """Return the layers, each as the first one of its kind."""
        kinds = self.planner.mixer.composer.layer_kinds
        return tuple(kinds.index(kind) for kind in kinds)

    @cached_property
    def _num_first(self) -> int:
        """Return how many layers of another kind come first; 0 where chunks are not interleaved."""
        return self._layers.index(self._layers[-1]) * (self._vp > 1)

    @property
    def _all(self) -> _Placed:
        return self._num_first, len(self._layers)


def _possible(sizes: Sequence[Sequence[int]], total: int) -> list[list[int]]:
    """Return the sizes of each chunk with which all can have this total; none if a chunk has no size."""
    if not all(sizes):
        return []
    low, high = (sum(each[end] for each in sizes) for end in (0, -1))
    return [[size for size in each if low - each[0] <= total - size <= high - each[-1]] for each in sizes]


def _seconds(held: Held) -> float:
    return held.seconds


@dataclass(frozen=True)
class Splits:
    """The splits of one request, searched for about ``most_s``. Embedding, MTP layers and loss stay."""

    made: Plan
    traces: Traces
    implementation: Implementation
    software: Software
    constants: Constants
    most_s: float = 10.0

    def best(self, of_request: Optimal) -> Optimal:
        """Return the fastest plan of all splits, with a bound for those that were not tried."""
        if of_request.room is None or self.made.spec.parallelism.pipeline_model_parallel_size == 1:
            return of_request
        began, best, search = time.monotonic(), of_request, self._search(of_request, of_request.room)
        if search.why_not:
            return replace(of_request, split_reason=f"splits were not searched: {search.why_not}")
        bound, reason = search.best(), ""
        while bound.seconds < best.seconds_or_inf * (1 - SAME_TIME):
            due = [held for held in bound.ranks if not held.is_final]
            if time.monotonic() - began + of_request.solved_in_s > self.most_s:
                reason = "the time limit ended the search of splits"
            if not due or reason:
                break
            search.refine(min(due, key=lambda held: held.search is not None))
            bound = search.best()
        known = search.best(is_exact=True)
        if known.seconds < best.seconds_or_inf * (1 - SAME_TIME):
            of_ranks = zip(*(held.sizes for held in known.ranks), strict=True)
            found = self._solved(sizes := tuple(size for chunk in of_ranks for size in chunk))
            if found.seconds_or_inf < best.seconds_or_inf:
                best = replace(found, layout=layout_text(self._flat, sizes))
        split_bound = min(bound.seconds, best.seconds_or_inf, search.left_out_s)
        return replace(
            best,
            bound=min(best.bound, split_bound),
            split_bound=split_bound,
            split_reason=reason * (split_bound < best.seconds_or_inf * (1 - SAME_TIME)),
            most_settings=min(best.most_settings, search.planner.mixer.most_settings),
            best_uniform=of_request.best_uniform,
            solved_in_s=of_request.solved_in_s + time.monotonic() - began,
        )

    def _search(self, known: Optimal, room: Room) -> SplitSearch:
        rows = self.made.predicted
        assert rows[0].prediction
        mixer = mixer_of(self.made, self.traces, self.implementation, self.software, self.constants, self._mixes)
        planner = Planner(replace(mixer, more_layers=1), room, rows[0].prediction.adam, self.constants.allocator_bytes)
        return SplitSearch(planner, self._flat, known.seconds_or_inf)

    def _solved(self, sizes: Sizes) -> Optimal:
        made = replace(self.made, spec=self._with(sizes))
        try:
            return optimal(made, self.traces, self.implementation, self.software, self.constants, mixes=self._mixes)
        except MissingTraceError as error:
            return Optimal(None, reason=str(error))

    def _with(self, sizes: Sizes) -> ExperimentSpec:
        changes: dict[str, object] = {
            "pipeline_model_parallel_layout": layout_text(self._flat, sizes),
            "num_layers_in_first_pipeline_stage": None,
            "num_layers_in_last_pipeline_stage": None,
            "account_for_embedding_in_pipeline_split": False,
            "account_for_loss_in_pipeline_split": False,
        }
        own = self.made.spec.parallelism.model_copy(update=changes)
        return self.made.spec.model_copy(update={"parallelism": own})

    @cached_property
    def _mixes(self) -> Made:
        return {}

    @cached_property
    def _flat(self) -> tuple[Chunk, ...]:
        stages = chunks(self.made.spec.model, self.made.spec.parallelism)
        return tuple(stage[chunk] for chunk in range(len(stages[0])) for stage in stages)


def layout_text(flat: Sequence[Chunk], sizes: Sizes) -> str:
    """Return the split as `pipeline_model_parallel_layout`."""
    return write_layout(
        "E" * chunk.has_embedding + "t" * size + "m" * chunk.mtp_layers + "L" * chunk.has_loss
        for chunk, size in zip(flat, sizes, strict=True)
    )
