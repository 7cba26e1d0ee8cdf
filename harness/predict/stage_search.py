"""The memory rows of one pipeline stage, and a search of its mixes that fit and are as fast as asked.

A linear relaxation prices the moments of a stage. All plans up to a given time are those whose mixes together cost no
more beyond these prices than the time exceeds the relaxation's; these few are listed, chunk after chunk.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

from harness.experiment.experiment import ExperimentSpec
from harness.predict.compose import ChunkCost, Parameters
from harness.predict.ledger import deferred_bytes, gathered_inputs_bytes, overhead_bytes, rotary_table_bytes
from harness.predict.mixes import Mix, Numbers, arrays
from harness.predict.model_states import Adam, model_states
from harness.predict.schedule import Instant, fullest_instants, keeps_outputs, schedule_of
from harness.units import MIB

Routing = Literal["even", "uneven"]


@dataclass(frozen=True)
class Row:
    """Bytes at one moment: ``fixed``, and of each chunk those of its mix; ``beside``: and one layer."""

    fixed: float
    of_chunks: tuple[Numbers, ...]
    beside: bool = False


def rows(
    spec: ExperimentSpec, pp_rank: int, chunks: Sequence[Sequence[Mix]], routing: Routing, adam: Adam, more: int
) -> Iterator[Row]:
    """Yield the moments of a stage. ``chunks``: the mixes of each; ``more``: bytes held beside all."""
    costs: list[list[ChunkCost]] = [[getattr(mix, routing) for mix in mixes] for mixes in chunks]
    of, first = [*map(arrays, costs)], tuple(each[0] for each in costs)
    for each in of:  # a chunk with layers caches the rotary table
        each["persistent"] = each["persistent"] + rotary_table_bytes(spec) * (each["saved"] > 0)
    states = model_states(spec, Parameters.total(cost.parameters for cost in first), adam=adam)
    schedule = schedule_of(spec, pp_rank)
    always = states.total + more + overhead_bytes(spec, first) - sum(float(each["persistent"][0]) for each in of)
    always += gathered_inputs_bytes(spec) if schedule.num_deferred else 0
    outputs = [int(keeps_outputs(spec) and not cost.has_loss) for cost in first]
    yield Row(always + states.step_transient, tuple(each["persistent"] + each["lingering"] for each in of))
    for instant in fullest_instants(schedule):
        buffers = instant.event.buffers + sum(map(int.__mul__, instant.in_flight, outputs))
        deferred = instant.deferred * deferred_bytes(spec)
        fixed = always + states.gathered + buffers * first[instant.event.chunk].hidden_bytes + deferred
        found = [_of_chunk(instant, chunk, each) for chunk, each in enumerate(of)]
        logits = _logits(instant, of[instant.event.chunk]) if first[instant.event.chunk].has_loss else 0.0
        yield Row(fixed, tuple(found))
        if schedule.extra_warmup:
            found[instant.event.chunk] = found[instant.event.chunk] - logits
            yield Row(fixed - deferred * first[instant.event.chunk].has_loss, tuple(found), beside=True)


def _of_chunk(instant: Instant, chunk: int, of: dict[str, Numbers]) -> Numbers:
    number, runs = instant.in_flight[chunk], chunk == instant.event.chunk
    begins = runs and instant.event.direction == "forward"
    found = of["persistent"] + number * of["saved"] - max(0, number + begins - 1) * of["latest"]
    if runs:
        when = "again" if instant.ended[chunk] else "peak"
        return found + of[f"{instant.event.direction}_{when}"]
    if instant.ended[chunk]:
        return found + (of["replaced"] if number else of["lingering"])
    return found


def _logits(instant: Instant, of: dict[str, Numbers]) -> Numbers:
    """Return what the running chunk's output layer and loss add, beside which no layer runs."""
    begins, when = instant.event.direction == "forward", "again" if instant.ended[instant.event.chunk] else "peak"
    name = f"{instant.event.direction}_{when}"
    number = instant.in_flight[instant.event.chunk] + begins
    beyond = of[name] - of[f"body_{name}"] - begins * (of["saved"] - of["body_saved"])
    return number * (of["saved"] - of["body_saved"]) + np.maximum(0, beyond)


# More than so many parts of plans are not listed.
MOST_LISTED = 400_000
# By how much a relaxation may be off, as a share of the seconds.
_TOLERANCE = 1e-7
# Seconds that differ by less, as a share of the longest, are as long: sums of the same mixes in another order.
_SAME_SHARE = 1e-11


class UnsolvedError(Exception):
    """A search ends without an answer: more plans are as fast than it lists, or the linear program has no solution."""


@dataclass(frozen=True)
class Room:
    """What fits: ``peak`` times the peak plus ``uneven`` times that of uneven routing, up to ``budget_bytes``.

    Both peaks are those of the whole job, which may be of different stages. ``most``: what each may be at most.
    """

    budget_bytes: float
    peak: float
    uneven: float
    most: tuple[float, float] = (inf, inf)


class Plans(NamedTuple):
    """Plans of a stage, an entry each: the numbers of their mixes by chunk, seconds, returning ones, and peak bytes."""

    mixes: Any
    seconds: Any
    returning: Any
    peaks: Any

    def where(self, chosen: Any) -> "Plans":
        """Return those that are chosen."""
        return Plans(*(each[chosen] for each in self))


class Kind(NamedTuple):
    """The moments of a stage under one kind of routing: bytes ``fixed[row]``, and ``of_chunks[chunk][row, mix]``."""

    fixed: Any
    of_chunks: tuple[Any, ...]
    beside: Any


@dataclass(frozen=True)
class StageSearch:
    """One stage. ``more_bytes``: what the allocator holds beside all; ``num_layers``: of all chunks together."""

    spec: ExperimentSpec
    pp_rank: int
    chunks: tuple[tuple[Mix, ...], ...]
    room: Room
    adam: Adam
    more_bytes: int
    num_layers: int

    @property
    def least_s(self) -> float:
        """Return seconds that no plan which fits is below; inf if none fits."""
        return inf if self._relaxed is None else self._relaxed[0] * (1 - _TOLERANCE)

    def fastest(self) -> float | None:
        """Return the seconds of the fastest plan that fits; None if none fits. UnsolvedError."""
        if self._relaxed is None:
            return None
        least, longest = self._relaxed[0], sum(float(each.max()) for each in self._seconds)
        for share in (1e-6, 0.002, 0.01, 0.05, 0.2, 1.0):
            limit = least + share * (longest - least) + least * _TOLERANCE
            found = self.up_to(limit)
            if len(found.seconds):
                return float(found.seconds.min())
        return None

    def up_to(self, most_s: float, least_s: float = 0.0) -> Plans:
        """Return the undominated plans that fit and take at most, and at least, so many seconds. UnsolvedError."""
        if self._relaxed is None:
            return self._nothing
        least, prices = self._relaxed
        spare = most_s - least + least * _TOLERANCE
        found = Plans(np.zeros((1, 0), int), np.zeros(1), np.zeros(1), np.zeros(1))
        sums = [kind.fixed[None, :] for kind in self._kinds]
        cost = largest = np.zeros(1)
        for chunk in range(len(self.chunks)):
            rest = sum(float(each.max()) for each in self._seconds[chunk + 1 :])
            _require_few(len(cost) * len(prices[chunk]) // 20)
            total, seconds = cost[:, None] + prices[chunk], found.seconds[:, None] + self._seconds[chunk]
            kept = (total <= spare) & (seconds <= most_s * (1 + _TOLERANCE)) & (seconds + rest >= least_s)
            (parts, mixes), cost, seconds = np.nonzero(kept), total[kept], seconds[kept]
            _require_few(len(parts))
            sums = [each[parts] + kind.of_chunks[chunk].T[mixes] for each, kind in zip(sums, self._kinds, strict=True)]
            largest = np.maximum(largest[parts], self._largest[chunk][mixes])
            found = Plans(
                np.column_stack([found.mixes[parts], mixes]),
                seconds,
                found.returning[parts] + self._returning[chunk][mixes],
                np.zeros(len(parts)),
            )
            peaks, fits = self._fits(sums, largest, chunk + 1)
            placed = sum(counts[own] for counts, own in zip(self._counts, found.mixes.T, strict=False))
            left = [sum(int(end(each)) for each in self._counts[chunk + 1 :]) for end in (np.min, np.max)]
            fits &= (placed + left[0] <= self.num_layers) & (self.num_layers <= placed + left[1])
            best = _undominated(found, placed, np.column_stack([*sums, largest]), np.flatnonzero(fits))
            found, cost, largest = found._replace(peaks=peaks).where(best), cost[best], largest[best]
            sums = [each[best] for each in sums]
        return found.where(found.seconds >= least_s * (1 - _TOLERANCE))

    def _fits(self, sums: Sequence[Any], largest: Any, done: int) -> tuple[Any, Any]:
        """Return the least peaks, and whether they fit, of plans whose chunks from ``done`` on are the smallest."""
        tops = []
        for each, kind in zip(sums, self._kinds, strict=True):
            rest = sum((part.min(axis=1) for part in kind.of_chunks[done:]), np.zeros(len(kind.fixed)))
            tops.append((each + rest + kind.beside * largest[:, None]).max(axis=1))
        is_within = (tops[0] <= self.room.most[0]) & (tops[-1] <= self.room.most[1])
        return tops[0], is_within & (self.room.peak * tops[0] + self.room.uneven * tops[-1] <= self.room.budget_bytes)

    @property
    def _nothing(self) -> Plans:
        return Plans(np.zeros((0, len(self.chunks)), int), *(np.zeros(0) for _ in range(3)))

    @cached_property
    def _seconds(self) -> list[Any]:
        return [np.array([mix.seconds for mix in mixes]) for mixes in self.chunks]

    @cached_property
    def _returning(self) -> list[Any]:
        return [np.array([mix.returning for mix in mixes]) for mixes in self.chunks]

    @cached_property
    def forward_ends(self) -> tuple[float, float]:
        """Return the least and the most seconds of the forward passes of a micro-batch."""
        ends = list[float]()
        for sign in (1, -1):
            forward = [sign * (own - back) for own, back in zip(self._seconds, self._returning, strict=True)]
            least = [
                {int(num): float(each[counts == num].min()) for num in {*counts}}
                for each, counts in zip(forward, self._counts, strict=True)
            ]
            ends.append(sign * least_sum(least, self.num_layers))
        return ends[0], ends[1]

    @cached_property
    def _counts(self) -> list[Any]:
        return [np.array([len(mix.settings) for mix in mixes]) for mixes in self.chunks]

    @cached_property
    def _largest(self) -> list[Any]:
        return [arrays([mix.uneven for mix in mixes])["largest_unit"] for mixes in self.chunks]

    @cached_property
    def _kinds(self) -> list[Kind]:
        """Return the moments with even routing, and with uneven where that differs."""
        differs = any(mix.even is not mix.uneven for mixes in self.chunks for mix in mixes)
        routings: tuple[Routing, ...] = ("even", "uneven") if differs else ("even",)
        return [
            _kind([*rows(self.spec, self.pp_rank, self.chunks, each, self.adam, self.more_bytes)]) for each in routings
        ]

    @cached_property
    def _relaxed(self) -> tuple[float, list[Any]] | None:
        """Return the least seconds and what each mix costs beyond its prices; None if nothing fits. UnsolvedError."""
        starts = [0, *np.cumsum([len(each) for each in self._seconds])]
        num, num_rows = starts[-1], sum(len(kind.fixed) for kind in self._kinds)
        num_limits = num_rows + 1 + len(self.chunks)
        above, limits = lil_matrix((num_limits, num + 3)), np.zeros(num_limits)
        at = 0
        for nth, kind in enumerate(self._kinds):
            end = at + len(kind.fixed)
            above[at:end, :num] = np.hstack(kind.of_chunks) / MIB
            above[at:end, num + nth] = -1
            above[at:end, num + 2] = kind.beside[:, None]
            limits[at:end] = -kind.fixed / MIB
            at = end
        above[at, num], above[at, num + len(self._kinds) - 1] = self.room.peak, self.room.uneven
        if len(self._kinds) == 1:
            above[at, num] = self.room.peak + self.room.uneven
        limits[at] = self.room.budget_bytes / MIB
        one = lil_matrix((len(self.chunks) + 1, num + 3))
        for chunk, (start, end) in enumerate(pairwise(starts)):
            above[at + 1 + chunk, start:end], above[at + 1 + chunk, num + 2] = self._largest[chunk] / MIB, -1
            one[chunk, start:end] = 1
        one[-1, :num], sums = np.concatenate(self._counts), np.append(np.ones(len(self.chunks)), self.num_layers)
        costs = np.concatenate([*self._seconds, np.zeros(3)])
        scale = 1000 / max(float(costs.max()), 1e-300)
        above, one = above.tocsr(), one.tocsr()
        most = (self.room.most[0] / MIB, self.room.most[1] / MIB, inf)
        bounds = np.column_stack([np.zeros(num + 3), np.concatenate([np.full(num, inf), most])])
        found = linprog(costs * scale, above, limits, one, sums, bounds, method="highs")
        # Status 2 is also that of a program which HiGHS does not accept.
        if found.status == 2 and "infeasible" in found.message.lower():
            return None
        if found.status != 0:
            raise UnsolvedError(f"the linear program of a stage was not solved; try other --only. {found.message}")
        prices = costs * scale - above.T @ found.ineqlin.marginals - one.T @ found.eqlin.marginals
        prices = np.maximum(0, prices / scale)
        return found.fun / scale, [prices[start:end] for start, end in pairwise(starts)]


def least_sum(parts: Sequence[Mapping[int, float]], total: int) -> float:
    """Return the least sum of a value of each part whose keys have this ``total``; inf if none have."""
    found = {0: 0.0}
    for part in parts:
        sums = [(num + more, value + part[more]) for num, value in found.items() for more in part]
        found = {num: min(value for other, value in sums if other == num) for num, _ in sums}
    return found.get(total, inf)


def _require_few(number: int) -> None:
    if number > MOST_LISTED:
        raise UnsolvedError("too many plans of a stage are as fast; name fewer settings with --only")


def _undominated(plans: Plans, placed: Any, held: Any, among: Any) -> Any:
    """Return the plans ``among`` all that no other one with as many layers, as fast, undercuts at every moment."""
    times = np.column_stack([plans.seconds, plans.returning])[among]
    longest = max(float(times.max(initial=0.0)), 1e-300)
    alike = np.column_stack([np.round(times / (longest * _SAME_SHARE)), placed[among]])
    _, kinds = np.unique(alike, axis=0, return_inverse=True)
    order, kept = np.lexsort((held[among].sum(axis=1), kinds.ravel())), list[int]()
    for left in np.split(among[order], np.flatnonzero(np.diff(kinds.ravel()[order])) + 1):
        equal = left
        while len(equal):
            kept.append(equal[0])
            equal = equal[1:][np.any(held[equal[1:]] < held[equal[0]], axis=1)]
    return np.sort(np.array(kept, int))


def _kind(found: list[Row]) -> Kind:
    """Return the moments as arrays, without those that another one exceeds whatever the mixes."""
    fixed, beside = np.array([row.fixed for row in found], float), np.array([row.beside for row in found], float)
    of_chunks = [np.array([row.of_chunks[chunk] for row in found], float) for chunk in range(len(found[0].of_chunks))]
    kept: list[int] = []
    order = np.argsort(-(fixed + sum(each.max(axis=1) for each in of_chunks)))
    for at in order:
        if kept:
            more = fixed[at] - fixed[kept] + sum((each[at] - each[kept]).max(axis=1) for each in of_chunks)
            if np.any((more <= 0) & (beside[kept] >= beside[at])):
                continue
        kept.append(int(at))
    return Kind(fixed[kept], tuple(each[kept] for each in of_chunks), beside[kept])
