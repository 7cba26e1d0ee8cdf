"""Every way to distribute settings over the layers of one chunk, with the bytes and seconds of each."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np

from harness.experiment.layout_text import Chunk
from harness.experiment.model import LayerKind
from harness.experiment.recompute import NoRecompute, RecomputePolicy
from harness.experiment.recompute_plan import FULL
from harness.predict.compose import ChunkCost
from harness.predict.experts import at_pace
from harness.predict.stages import Composer
from harness.predict.time_model import Clock
from harness.records.trace import ChunkTrace

# Of one chunk at most so many mixes are made: with every setting, or else with three or two different ones in a chunk.
MOST_MIXES = 5000
# Bytes that a processor moves in the time of so many operations: it has no time model, and recompute costs both.
_FLOPS_PER_BYTE, _FLOPS_PER_S = 10, 1e11


Numbers = Any  # an array of numbers, one for each mix


class Mix(NamedTuple):
    """One distribution of ``settings``, MTP layers last; seconds of a micro-batch, ``returning`` backward."""

    settings: tuple[str, ...]
    even: ChunkCost
    uneven: ChunkCost
    seconds: float
    returning: float


Made = dict[object, tuple[Mix, ...]]


@dataclass(frozen=True)
class Mixer:
    """Makes the mixes of a request, of ``settings``, the one that keeps the most last; ``more_layers``: per chunk."""

    composer: Composer
    clock: Clock | None
    settings: tuple[str, ...]
    even: Mapping[str, ChunkTrace]
    uneven: Mapping[str, ChunkTrace] | None
    made: Made = field(default_factory=dict)
    more_layers: int = 0

    def mixes(self, stage: tuple[Chunk, ...], chunk: Chunk) -> tuple[Mix, ...]:
        """Return the mixes of a chunk; chunks that are alike have the same ones."""
        of_stage, kinds = self.composer.kinds(stage), self.composer.layer_kinds
        layers = tuple(kinds[i] for i in chunk.layers)
        alike = layers, chunk.has_embedding, chunk.has_loss, chunk.mtp_layers, of_stage, self.most_settings
        if alike not in self.made:
            every = self._ways(layers, chunk.mtp_layers, self.most_settings)
            self.made[alike] = tuple(self._mix(chunk, settings, of_stage) for settings in every)
        return self.made[alike]

    def leading(self, mixes: tuple[Mix, ...]) -> tuple[Mix, ...]:
        """Return the mixes of a chunk that no other one beats; all where the loss runs beside other layers."""
        if self.composer.spec.kernels.overlap_moe_expert_parallel_comm and mixes[0].even.has_loss:
            return mixes  # what runs beside the loss decides there
        if id(mixes) not in self._leading:
            self._leading[id(mixes)] = pruned(mixes, self.composer.spec.num_microbatches)
        return self._leading[id(mixes)]

    def _policy_of(self, setting: str) -> RecomputePolicy:
        if setting not in self._policies:
            self._policies[setting] = self.composer.policy_of(setting)
        return self._policies[setting]

    @cached_property
    def _policies(self) -> dict[str, RecomputePolicy]:
        return {}

    @cached_property
    def _leading(self) -> dict[int, tuple[Mix, ...]]:
        return {}

    @cached_property
    def allowed(self) -> dict[LayerKind, tuple[str, ...]]:
        """Return the settings that a layer of each kind may have: without those that another one beats on one layer."""
        kinds, found = self.composer.layer_kinds, dict[LayerKind, tuple[str, ...]]()
        for kind in dict.fromkeys(kinds):
            one = Chunk((kinds.index(kind),))
            # Of those that do the same on such a layer, the one with the fewest modules comes first, and is kept.
            simplest = sorted(self.settings, key=lambda setting: (setting != NoRecompute().text, setting.count(",")))
            mixes = [self._mix(one, (setting,), frozenset({kind})) for setting in simplest]
            kept = {mix.settings[0] for mix in pruned(mixes, self.composer.spec.num_microbatches)}
            found[kind] = tuple(setting for setting in self.settings if setting in kept)
        return found

    @cached_property
    def most_settings(self) -> int:
        """Return how many different settings a chunk may use: all, or so few that the mixes can be made."""
        kinds = self.composer.layer_kinds
        chunks = {
            (tuple(kinds[i] for i in chunk.layers) + kinds[-1:] * self.more_layers, chunk.mtp_layers)
            for stage in self.composer.stages
            for chunk in stage
        }
        every = len({setting for settings in self.allowed.values() for setting in settings})
        for most in (every, 4, 3):
            if most <= every and all(len(self._ways(*each, most)) <= MOST_MIXES for each in chunks):
                return most
        return min(2, every)

    def _ways(self, layers: Sequence[LayerKind], num_mtp: int, most: int) -> list[tuple[str, ...]]:
        """Return the settings of the layers of every mix of at most so many settings; of too many, one too many."""
        parts = [self.allowed[kind] for kind in layers] + [self.allowed[self.composer.layer_kinds[-1]]] * num_mtp
        here = [setting for setting in self.settings if any(setting in part for part in parts)]
        found: dict[tuple[str, ...], None] = {}
        for chosen in combinations(here, min(most, len(here))):
            of_kind = {kind: tuple(each for each in own if each in chosen) for kind, own in self.allowed.items()}
            for way in _ways(layers, num_mtp, of_kind, of_kind[self.composer.layer_kinds[-1]]):
                found[way] = None
                if len(found) > MOST_MIXES and most > 2:
                    return [*found]
        return [*found]

    def _mix(self, chunk: Chunk, settings: tuple[str, ...], of_stage: frozenset[LayerKind]) -> Mix:
        policies = tuple(map(self._policy_of, settings))
        even = uneven = busiest = self.composer.chunk_cost(chunk, policies, of_stage, self.even)
        if self.uneven:
            uneven = self.composer.chunk_cost(chunk, policies, of_stage, self.uneven)
            busiest = at_pace(self.composer.spec, ((even,),), ((uneven,),))[0][0]
        if self.clock is None:
            effort = sum(count * (op.flops + _FLOPS_PER_BYTE * op.bytes) for op, count in even.work)
            return Mix(settings, even, uneven, effort / _FLOPS_PER_S, 0.0)
        passes = self.clock.passes(busiest)
        return Mix(settings, even, uneven, passes.seconds, passes.returning)


def _ways(
    layers: Sequence[LayerKind], num_mtp: int, of_kind: Mapping[LayerKind, tuple[str, ...]], of_mtp: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield the settings of each layer: first layers under full, then of each kind the settings in their order."""
    kept = {kind: [setting for setting in settings if setting != FULL] for kind, settings in of_kind.items()}
    last = [(setting,) * num_mtp for setting in of_mtp if setting != FULL] if num_mtp else [()]
    for num_full in range(len(layers) + 1):
        if num_full and FULL not in of_kind[layers[num_full - 1]]:
            return
        rest = Counter(layers[num_full:])
        for chosen in _chosen(kept, [*rest.items()]):
            left = {kind: iter(each) for kind, each in zip(rest, chosen, strict=True)}
            front = (*(FULL,) * num_full, *(next(left[kind]) for kind in layers[num_full:]))
            yield from ((*front, *mtp) for mtp in last)


def _chosen(
    kept: Mapping[LayerKind, Sequence[str]], rest: Sequence[tuple[LayerKind, int]]
) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield the settings of the layers by kind. One at a time: `itertools.product` would hold all in memory."""
    if not rest:
        yield ()
        return
    (kind, count), *others = rest
    for first in combinations_with_replacement(kept[kind], count):
        yield from ((first, *more) for more in _chosen(kept, others))


def arrays(costs: Sequence[ChunkCost]) -> dict[str, Numbers]:
    """Return the figures of the mixes of a chunk that decide about bytes, an array each."""
    sizes = ("saved", "forward_peak", "forward_again", "backward_peak", "backward_again")
    found = {
        name: np.array([getattr(cost.sizes, name) for cost in costs], float)
        for name in (*sizes, "lingering", "replaced")
    }
    found |= {f"body_{name}": np.array([getattr(cost.body, name) for cost in costs], float) for name in sizes}
    more = ("persistent", "latest", "largest_unit")
    return found | {name: np.array([getattr(cost, name) for cost in costs], float) for name in more}


def growing(of: dict[str, Numbers]) -> Numbers:
    """Return the figures by which every moment grows or stays, a row for each mix: less of all is never more bytes."""
    own = of["saved"] - of["latest"]
    running = (
        of["forward_peak"],
        of["forward_again"],
        *(of["saved"] + of[f"backward_{name}"] for name in ("peak", "again")),
    )
    kept = (of[name] for name in ("saved", "lingering", "replaced", "persistent", "largest_unit"))
    return np.stack([own, *running, *kept], axis=1)


def pruned(mixes: Sequence[Mix], num_microbatches: int) -> tuple[Mix, ...]:
    """Return the mixes that no other beats: as fast, and as small at every moment.

    What a step exchanges is hidden by at most the passes of one micro-batch, so it may differ by as much as these.
    """
    of_bytes = np.hstack([growing(arrays([getattr(mix, name) for mix in mixes])) for name in ("even", "uneven")])
    seconds, returning = (np.array([getattr(mix, name) for mix in mixes]) for name in ("seconds", "returning"))
    kept: list[int] = []
    for at in np.lexsort((of_bytes.sum(axis=1), seconds)):
        others = np.array(kept, int)
        moved = np.abs(returning[others] - returning[at])
        moved += np.abs(seconds[others] - returning[others] - seconds[at] + returning[at])
        is_faster = (seconds[others] + moved / num_microbatches <= seconds[at]) | (moved == 0)
        if not np.any(is_faster & np.all(of_bytes[others] <= of_bytes[at], axis=1)):
            kept.append(int(at))
    return tuple(mixes[at] for at in kept)
