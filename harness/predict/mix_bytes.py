"""The memory of a stage as linear rows over the mixes of its chunks: one row for each moment that may be the fullest.

The arithmetic is that of `ledger.py`; a plan that the solver finds is predicted again by the ledger itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.experiment.experiment import ExperimentSpec
from harness.predict.compose import ChunkCost, Parameters
from harness.predict.ledger import deferred_bytes, gathered_inputs_bytes, overhead_bytes, rotary_table_bytes
from harness.predict.mixes import Mix, Numbers, arrays
from harness.predict.model_states import Adam, model_states
from harness.predict.schedule import Instant, fullest_instants, keeps_outputs, schedule_of

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
    """Yield the moments of a stage. ``chunks``: the mixes of each; ``more``: bytes held beside all.

    Mixes of a chunk may have different numbers of layers where the stage has as many in all as the first ones.
    """
    costs: list[list[ChunkCost]] = [[getattr(mix, routing) for mix in mixes] for mixes in chunks]
    of, first = [_with_table(spec, arrays(each)) for each in costs], tuple(each[0] for each in costs)
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


def _with_table(spec: ExperimentSpec, of: dict[str, Numbers]) -> dict[str, Numbers]:
    """Return the figures with the rotary table that a chunk with layers caches."""
    return of | {"persistent": of["persistent"] + rotary_table_bytes(spec) * (of["saved"] > 0)}


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
