"""Moves layers between pipeline stages, so that the fastest plan by layer becomes faster.

Stages are first balanced by their seconds without recompute. Then a layer goes from the slowest stage of the fastest
plan to another one, as long as a plan becomes faster and time is left.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from math import inf

from harness.experiment.effective import Implementation
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout import chunks
from harness.experiment.layout_text import Chunk
from harness.experiment.recompute import NoRecompute
from harness.experiment.software import Software
from harness.predict.fastest import Optimal, optimal
from harness.predict.mixes import Made, Mixer
from harness.predict.prediction import Constants
from harness.predict.search import Plan, Traces
from harness.predict.split_bound import SplitBound
from harness.predict.stages import Composer
from harness.predict.time_model import Clock
from harness.predict.trace_book import MissingTraceError

MOST_SECONDS = 10.0
# The slowest stage gives a layer to one of so many fastest ones.
_TAKERS = 3
Sizes = tuple[int, ...]  # decoder layers of each virtual stage: through all ranks of a chunk, then the next chunk


@dataclass(frozen=True)
class Splits:
    """The splits of one request. Embedding, MTP layers and loss stay where they are."""

    made: Plan
    traces: Traces
    implementation: Implementation
    software: Software
    constants: Constants

    def best(self, of_request: Optimal) -> Optimal:
        """Return the fastest plan of all splits that were tried, with a bound for those that were not.

        ``of_request``: the plan of the request's own split. Where that has none for want of a way to set it, it stays.
        """
        if of_request.row is None and not of_request.most_settings:
            return of_request
        began = time.monotonic()
        first: Sizes = tuple(len(chunk.layers) for chunk in self._flat)
        best, sizes, tried = of_request, first, {first}
        due, longest = [even for even in [self._balanced(first)] if even != first], of_request.solved_in_s
        while time.monotonic() - began + longest < MOST_SECONDS:
            due += [each for each in self._next(sizes, best) if not due and each not in tried][:1]
            if not due:
                break
            tried.add(due[0])
            found = self._solved(other := due.pop())
            longest = max(longest, found.solved_in_s)
            if _seconds(found) < _seconds(best) * (1 - 1e-9):
                best, sizes = found, other
        return replace(
            best,
            layout=layout_text(self._flat, sizes) if sizes != first else "",
            num_splits=len(tried),
            split_bound=self._bound(sizes, best),
            best_uniform=of_request.best_uniform,
            solved_in_s=of_request.solved_in_s + time.monotonic() - began,
        )

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

    @cached_property
    def _pp(self) -> int:
        return self.made.spec.parallelism.pipeline_model_parallel_size

    @cached_property
    def _mixer(self) -> Mixer:
        composer = Composer(self.made.spec, self.implementation, self.software)
        clock = None
        if not self.made.spec.gpu_type.is_cpu:
            clock = Clock(self.made.spec, self.constants.efficiency(self.made.spec.gpu))
        keeps = composer.with_recompute(NoRecompute())
        return Mixer(keeps, clock, (NoRecompute().text,), self.traces.even, self.traces.uneven)

    def _of_ranks(self, sizes: Sizes) -> list[float]:
        at, cut = 0, list[Chunk]()
        for chunk, size in zip(self._flat, sizes, strict=True):
            cut.append(replace(chunk, layers=tuple(range(at, at + size))))
            at += size
        stages = [tuple(cut[rank :: self._pp]) for rank in range(self._pp)]
        return [sum(self._mixer.mixes(stage, chunk)[0].seconds for chunk in stage) for stage in stages]

    def _balanced(self, sizes: Sizes) -> Sizes:
        """Return the sizes after every move of one layer that makes the slowest rank faster."""
        while True:
            seconds = self._of_ranks(sizes)
            slowest = seconds.index(max(seconds))
            takers = [rank for rank in range(self._pp) if rank != slowest]
            moved = min(_moves(self._flat, sizes, self._pp, slowest, takers), key=self._shape, default=sizes)
            if self._shape(moved) >= self._shape(sizes):
                return sizes
            sizes = moved

    def _shape(self, sizes: Sizes) -> tuple[float, float]:
        try:
            seconds = self._of_ranks(sizes)
        except MissingTraceError:  # the embedding stood before no layer of this kind
            return inf, inf
        return max(seconds), sum(each * each for each in seconds)

    def _next(self, sizes: Sizes, found: Optimal) -> Iterator[Sizes]:
        """Yield the sizes with a layer of the slowest stage of a plan elsewhere, the fastest stages first."""
        if found.stage_s:
            order = sorted(range(self._pp), key=found.stage_s.__getitem__)
            yield from _moves(self._flat, sizes, self._pp, order[-1], order[:-1][:_TAKERS])

    def _bound(self, sizes: Sizes, best: Optimal) -> float:
        """Return the least seconds of any split without recompute and exchanges; whole layers where that is known."""
        bound = SplitBound(self._mixer, self._flat, self._pp, best.seconds)
        if best.row and bound.is_known:
            return bound.seconds()
        total, vp = sum(self._of_ranks(sizes)), len(sizes) // self._pp
        fixed = self._mixer.clock.efficiency.step_s if self._mixer.clock else 0.0
        return total * (self.made.spec.num_microbatches / self._pp + (self._pp - 1) / vp / self._pp) + fixed


def _seconds(found: Optimal) -> float:
    return found.seconds if found.row else inf


def _moves(flat: Sequence[Chunk], sizes: Sizes, pp: int, giver: int, takers: Sequence[int]) -> Iterator[Sizes]:
    """Yield the sizes after one layer of rank ``giver`` has gone to a rank of ``takers``, before MTP layers."""
    last = next((at for at, chunk in enumerate(flat) if chunk.mtp_layers), len(flat) - 1)
    gives = sorted((at for at in range(giver, len(sizes), pp) if sizes[at]), key=lambda at: -sizes[at])
    for taker, give in product(takers, gives):
        take = min(range(taker, last + 1, pp), key=sizes.__getitem__)
        yield tuple(size - (at == give) + (at == take) for at, size in enumerate(sizes))


def layout_text(flat: Sequence[Chunk], sizes: Sizes) -> str:
    """Return the split as `pipeline_model_parallel_layout`, equal stages in a row as ``(tt|)*3``."""
    stages = (
        "E" * chunk.has_embedding + _run("t", size) + _run("m", chunk.mtp_layers) + "L" * chunk.has_loss
        for chunk, size in zip(flat, sizes, strict=True)
    )
    groups = [(text, len([*same])) for text, same in groupby(stages)]
    last, number = groups.pop()
    groups += [(last, number - 1)] * (number > 1)
    return "".join(f"({text}|)*{count}" if count > 1 else f"{text}|" for text, count in groups) + last


def _run(code: str, number: int) -> str:
    return f"{code}*{number}" if number > 2 else code * number
