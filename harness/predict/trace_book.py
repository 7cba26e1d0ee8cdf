"""Where a composition looks up its traces, and the host's work in recompute, which no trace shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.model import has_experts
from harness.experiment.recompute import FullRecompute, SelectiveRecompute
from harness.predict.compose import ChunkCost, Op, Piece, Work
from harness.records.trace import ChunkTrace, OpKind, TraceCase

_NOTHING = ChunkTrace.model_validate({name: 0 for name, of in ChunkTrace.model_fields.items() if of.is_required()})


class MissingTraceError(LookupError):
    """Composition needs a trace that does not exist: the tracer refused it, or it was not requested."""


class Book:
    """Returns the traces of cases; without ``traces`` it records the ``cases`` that are asked for."""

    def __init__(self, traces: Mapping[str, ChunkTrace] | None = None) -> None:
        self._traces = traces
        self._made: dict[object, Piece] = {}
        self.costs: dict[object, ChunkCost] = {}
        self.cases: list[TraceCase] = []

    def once(self, name: object, make: Callable[[], Piece]) -> Piece:
        """Return the piece with this name; make it if it is new."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def __getitem__(self, case: TraceCase) -> ChunkTrace:
        if self._traces is None:
            self.cases.append(case)
            return _NOTHING
        if case.key not in self._traces:
            raise MissingTraceError(case.key)
        return self._traces[case.key]


@dataclass(frozen=True)
class Shared:
    """Values that the settings of one request share, and all but ``steps`` requests that differ in the pipeline."""

    cases: dict[object, TraceCase] = field(default_factory=dict)
    listed: dict[object, list[TraceCase]] = field(default_factory=dict)
    steps: dict[object, Any] = field(default_factory=dict)
    books: dict[int, Book] = field(default_factory=dict)


# A checkpoint takes the host as long as so many calls of a module, beside what it repeats: states of generators, hooks,
# a nested backward pass (results/accuracy/host.md).
AROUND = 1.6


def _costless(kind: OpKind) -> Op:
    """Return an operation that takes the host alone."""
    return Op("recompute", kind, "bf16", 0, 0, 0, None, overlapped=False)


AROUND_LAYERS = Work({_costless("gemm"): AROUND})


def work_around_checkpoints(layer: ExperimentSpec) -> Work:
    """Return what a trace does not show of the host's work in recompute, for a request reduced to one layer of a kind.

    Checkpoints keep the host busy. And a trace counts norms, permutations of tokens and fused activations as simple
    operations, which a module or an autograd function starts from Python as it starts products.
    """
    model, policy = layer.model, layer.recompute
    moe = model.moe if has_experts(model.layer_kinds[0]) else None
    norms = bool(model.mla) + bool(moe)  # others are fused into the product behind them
    inside = 4 * bool(moe) + 1 + bool(moe and moe.moe_shared_expert_intermediate_size)
    calls, checkpoints = 0, 0
    if isinstance(policy, FullRecompute):
        calls, checkpoints = norms + 2 * (model.qk_layernorm and not model.mla) + inside, 1
    elif isinstance(policy, SelectiveRecompute):
        calls_of = {"layernorm": norms, "moe": inside, "mlp": 1, "moe_act": 1, "shared_experts": 1}
        calls = sum(calls_of.get(name, 0) for name in policy.modules)
        checkpoints = sum(norms if name == "layernorm" else 1 for name in policy.modules)
    again = Work({_costless("elementwise"): -float(calls), _costless("gemm"): float(calls)} if calls else {})
    return Work.total((again, *[AROUND_LAYERS] * checkpoints))
