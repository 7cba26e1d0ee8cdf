"""Chains a chunk of recorded parts: its layers and ends, each with its requests for memory, and what it shares."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count
from typing import NamedTuple

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout_text import Chunk
from harness.experiment.model import LayerKind, has_experts
from harness.experiment.recompute import FullRecompute, NoRecompute, RecomputePolicy
from harness.predict.ledger import tokens_of_rank
from harness.predict.stages import Composer
from harness.predict.trace_cases import kind_of
from harness.records.events import OWN, ChunkEvents, Part, freed, owner_of
from harness.records.trace import TraceCase

Label = tuple[str, ...]
Read = Callable[[TraceCase], ChunkEvents | None]


class MissingEventsError(LookupError):
    """The requests of a part are not known, or of something that is not composed."""


@dataclass(frozen=True)
class Passes:
    """The rows of a part, as in its events. ``hands_on``: numbers of requests that it does not give back itself."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    hands_on: frozenset[int]

    @staticmethod
    def of(part: Part) -> "Passes":
        """Find what it hands on."""
        rows = (*part.forward, *part.backward)
        own = {what for owner, what in (owner_of(row) for row in rows if row <= 0) if owner == OWN}
        return Passes(part.forward, part.backward, frozenset(range(sum(row > 0 for row in rows))) - own)


@dataclass(frozen=True)
class Unit:
    """What runs as a whole: a layer, an end of the chunk, or layers under a checkpoint, which ``again`` runs twice.

    Sizes of requests: ``fixed`` ones do not go by tokens, ``routed`` ones go by the tokens of the rank's experts,
    ``aside`` are on a stream of the ``layer``, and ``split`` ones are one for each of ``num_experts``. DDP's stream
    reads ``gradients`` last. ``waits``: the backward pass begins with a wait for the device.
    """

    passes: tuple[Passes, ...]
    stay: tuple[int, ...] = ()
    again: tuple[Passes, ...] = ()
    label: Label = ()
    fixed: frozenset[int] = frozenset()
    aside: frozenset[int] = frozenset()
    routed: frozenset[int] = frozenset()
    split: frozenset[int] = frozenset()
    num_experts: int = 1
    layer: int = 0
    gradients: frozenset[int] = frozenset()
    waits: bool = False

    def asks(self, microbatch: int, what: str = "") -> Label:
        """Return who asks while it runs. Layers tell what they do, ends do not."""
        group, *place = self.label
        return (f"{group}, {what}" if what and place else group, *place, f"micro-batch {microbatch}")


@dataclass(frozen=True)
class ChunkParts:
    """A chunk as units in forward order, its parameters part by part, and what its layers share."""

    units: tuple[Unit, ...]
    parameters: tuple[int, ...]
    experts: tuple[int, ...]
    shared: tuple[int, ...]
    has_loss: bool

    def without(self, shared: Iterable[int]) -> "ChunkParts":
        """Leave to the rank what it makes once, whoever asks first: transformer-engine has a dummy gradient per shape.

        (2.11 `get_dummy_wgrad`; MTP layers belong to the end of a chunk.)
        """
        return replace(self, units=(*self.units[:-1], _without(self.units[-1], shared)))


def chunk_parts(composer: Composer, chunk: Chunk, read: Read) -> ChunkParts:
    """Chain the parts of a chunk. MissingEventsError where one is not known."""
    book = _Book(composer, read)
    kinds = [composer.layer_kinds[i] for i in chunk.layers]
    single = book.layers(kinds, composer.settings(chunk)[: len(kinds)])
    head, tail = book.ends(chunk)
    parts = (head.before, *(each.layer for each in single), tail.behind)
    begins = _end(head.before, ("embedding",) if chunk.has_embedding else ("layers", "input"))
    if chunk.has_embedding:
        begins = _with_sums(begins, composer.embedding_sums)
    ends = _end(tail.behind, ("output layer",) if chunk.has_loss else ("layers", "output"))
    gradient = composer.own_weight_gradient if composer.own_weight_gradient in ends.stay else 0
    if chunk.has_loss:
        uses = 1 + bool(chunk.mtp_layers)
        ends = _with_loss(_without(ends, (gradient,)), gradient, composer.logits_bytes, composer.loss_scratch, uses)
        ends = replace(ends, waits=composer.fused_loss == "te")  # 2.11 `cross_entropy_backward` compares on the device
    if chunk.mtp_layers and has_experts(composer.spec.model.layer_kinds[-1]):
        ends = replace(ends, routed=_of_experts(composer.spec)[1], layer=len(composer.layer_kinds))
    return ChunkParts(
        units=(begins, *_placed(composer.spec, book.units(single, kinds), chunk.layers), ends),
        parameters=tuple(chain.from_iterable(part.parameters for part in parts)),
        experts=tuple(chain.from_iterable(part.experts for part in parts)),
        shared=shared_by(each.shared for each in {id(each): each for each in single}.values()),
        has_loss=chunk.has_loss,
    )


def _placed(spec: ExperimentSpec, units: Iterable[Unit], numbers: Iterable[int]) -> Iterator[Unit]:
    """Name the layers of units, and the sizes of what their experts ask for."""
    left, (aside, routed, split) = iter(numbers), _of_experts(spec)
    num_experts, router = _num_own_experts(spec), frozenset[int]()
    if moe := spec.model.moe:
        router = frozenset({moe.num_moe_experts * spec.model.hidden_size * spec.precision.params_bytes})
    for unit in units:
        own = [next(left) for _ in unit.passes]
        label = ("layers", "layer " + ", ".join(map(str, own)))
        is_sparse = has_experts(spec.model.layer_kinds[own[0]])
        placed = replace(unit, label=label, aside=aside, layer=own[0])
        if is_sparse:
            placed = replace(placed, routed=routed, split=split, num_experts=num_experts, gradients=router)
        yield placed


def _num_own_experts(spec: ExperimentSpec) -> int:
    return spec.model.moe.num_moe_experts // spec.parallelism.expert_model_parallel_size if spec.model.moe else 1


def num_requests(spec: ExperimentSpec, kind: LayerKind, row: int) -> int:
    """Return for how many requests of a layer a row of its part stands."""
    return _num_own_experts(spec) if has_experts(kind) and row in _of_experts(spec)[2] else 1


def _of_experts(spec: ExperimentSpec) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    """Return sizes of inner states of shared experts that run beside the dispatch, and of what routed experts read.

    megatron-core gives each layer's shared experts a stream of their own (0.16 `SharedExpertMLP.__init__`). A routed
    size that another part of the layer may have as well is left out. Then sizes of what a trace quantises at once, with
    a scale of 4 bytes for each expert, and transformer-engine expert by expert (2.11 `GroupedLinear`, current scaling).
    """
    model, p, moe = spec.model, spec.parallelism, spec.model.moe
    if moe is None:
        return frozenset(), frozenset(), frozenset()
    tokens = tokens_of_rank(spec)
    own = tokens // p.tensor_model_parallel_size if p.sequence_parallel else tokens
    factors = {1, 1 + model.gated_linear_unit}
    shared = (moe.moe_shared_expert_intermediate_size or 0) * spec.kernels.moe_shared_expert_overlap
    inner = tokens * shared // p.tensor_model_parallel_size * spec.precision.params_bytes
    widths = {model.hidden_size, *(each * moe.moe_ffn_hidden_size // p.expert_tensor_size for each in factors)}
    rows, bytes_each = own * moe.moe_router_topk * p.expert_tensor_size, (1, 2, 4)
    others = {many * model.hidden_size * each for many in (tokens, own) for each in bytes_each}
    routed = {rows * width * each for width in widths for each in bytes_each} - others
    split = {rows * width + 4 * _num_own_experts(spec) for width in widths} if spec.precision.peak == "fp8" else set()
    return frozenset({each * inner for each in factors} - {0}), frozenset(routed | split), frozenset(split)


def shared_by(sizes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return what parts share, in bytes: of each size as many as the part that asks for the most of it."""
    most: Counter[int] = Counter()
    for each in sizes:
        most |= Counter(each)
    return tuple(most.elements())


@dataclass(frozen=True)
class _Book:
    """Looks up the chunks whose parts a chunk is chained of."""

    composer: Composer
    read: Read

    def _found(self, case: TraceCase) -> ChunkEvents:
        events = self.read(case)
        if events is None:
            raise MissingEventsError(case.key)
        return events

    def layers(self, kinds: Sequence[LayerKind], settings: Sequence[RecomputePolicy]) -> list[ChunkEvents]:
        """Return a chunk for each layer, whose middle layer it is."""
        each = zip(kinds, settings, strict=True)
        return [self._found(self.composer.make.layers(kind, policy, 3)) for kind, policy in each]

    def ends(self, chunk: Chunk) -> tuple[ChunkEvents, ChunkEvents]:
        """Return the chunks that begin and end as this one. MTP layers have an embedding, and run under a setting."""
        make, model, mtp = self.composer.make, self.composer.spec.model, bool(chunk.mtp_layers)
        plain = self._found(make.layers(kind_of(model, chunk, 0), NoRecompute(), 3))
        if not (chunk.has_embedding or chunk.has_loss or mtp):
            return plain, plain
        kind, policy = model.layer_kinds[-1], self.composer.settings(chunk)[-1] if mtp else NoRecompute()
        head = self._found(make.last(kind, NoRecompute(), pre=chunk.has_embedding, mtp=mtp))
        is_kept = isinstance(policy, NoRecompute)
        tail = head if is_kept else self._found(make.last(kind, policy, pre=False, mtp=True))
        begins, ends = chunk.has_embedding or mtp, chunk.has_loss or mtp
        return head if begins else plain, tail if ends else plain

    def units(self, single: list[ChunkEvents], kinds: Sequence[LayerKind]) -> list[Unit]:
        policy = self.composer.policy
        if not isinstance(policy, FullRecompute) or policy.method == "block" or policy.num_layers == 1:
            return [_layer(each.layer) for each in single]
        kept, n = self.layers(kinds, [NoRecompute()] * len(kinds)), policy.num_layers
        return [_checkpointed(single[i : i + n], kept[i : i + n]) for i in range(0, len(kinds), n)]


def _layer(part: Part) -> Unit:
    return Unit((Passes.of(part),), part.stay)


def _end(part: Part, label: Label) -> Unit:
    sizes = frozenset(part.parameters)
    return replace(_layer(part), label=label, fixed=sizes, gradients=sizes)


def _without(unit: Unit, sizes: Iterable[int]) -> Unit:
    return replace(unit, stay=tuple((Counter(unit.stay) - Counter(sizes)).elements()))


def _checkpointed(ran: list[ChunkEvents], kept: list[ChunkEvents]) -> Unit:
    passes, again = (tuple(Passes.of(each.layer) for each in chunks) for chunks in (ran, kept))
    return Unit(passes, tuple(size for each in ran for size in each.layer.stay), again)


class _Row(NamedTuple):
    """A request of so many bytes and its name; 0: the end of the named one; below 0: a row as in the events."""

    size: int
    name: int


def _edited(unit: Unit, edit: Callable[[list[_Row], list[_Row], dict[int, int]], None]) -> Unit:
    """Let ``edit`` change the rows of the forward and the backward pass. It also gets the size of each request."""
    (passes,) = unit.passes
    numbers = count()

    def named(row: int) -> _Row:
        owner, what = (OWN, next(numbers)) if row > 0 else owner_of(row)
        return _Row(max(row, 0), what) if owner == OWN else _Row(row, 0)

    forward, backward = [*map(named, passes.forward)], [*map(named, passes.backward)]
    edit(forward, backward, {row.name: row.size for row in (*forward, *backward) if row.size > 0})
    places = {row.name: place for place, row in enumerate(row for row in (*forward, *backward) if row.size > 0)}
    rows = (tuple(row.size or freed(OWN, places[row.name]) for row in each) for each in (forward, backward))
    return replace(unit, passes=(Passes.of(Part(forward=next(rows), backward=next(rows))),))


def _with_sums(unit: Unit, num_bytes: int) -> Unit:
    """Ask for bytes of a kernel, which no trace shows, for a moment: where the backward pass holds the most."""

    def edit(_: list[_Row], backward: list[_Row], sizes: dict[int, int]) -> None:
        changes = (
            row.size if row.size > 0 else -(owner_of(row.size)[1] if row.size else sizes[row.name]) for row in backward
        )
        held = [*accumulate(changes)]
        at = max(range(len(held)), key=held.__getitem__, default=-1) + 1
        backward[at:at] = [_Row(num_bytes, -1), _Row(0, -1)]

    return _edited(unit, edit) if num_bytes else unit


def _with_loss(unit: Unit, gradient: int, logits: int, scratch: int, num_uses: int) -> Unit:
    """Ask for what no trace shows of the loss: ``scratch`` beside fp32 logits, and own gradients of the weight."""

    def edit(forward: list[_Row], backward: list[_Row], sizes: dict[int, int]) -> None:
        for at in reversed([at for at, row in enumerate(forward) if row.size == scratch > 0]):
            forward[at + 1 : at + 1] = [_Row(scratch, ~at), _Row(0, ~at)]
        if gradient:
            ends = [row for row in backward if not row.size and sizes[row.name] == logits][:num_uses]
            if len(ends) < num_uses:
                raise MissingEventsError("the gradient of the logits")
            _make_gradients(backward, ends, [_Row(gradient, ~(len(forward) + use)) for use in range(num_uses)])

    return _edited(unit, edit)


def _make_gradients(backward: list[_Row], ends: list[_Row], made: list[_Row]) -> None:
    """Let a product make each own gradient beside that of its logits, before its end; under MTP the first waits.

    A trace under MTP has the second own gradient, once logits are gone.
    """
    if len(made) > 1:
        traced = {row.name for row in backward if row.size == made[0].size} - {row.name for row in ends}
        backward[:] = [row for row in backward if row.size < 0 or row.name not in traced]
    last = backward.index(ends[-1]) + 1
    backward[last:last] = [_Row(0, row.name) for row in reversed(made)]
    for end, row in zip(ends, made, strict=True):
        at = backward.index(end)
        backward.insert(max(n for n in range(at) if backward[n].size > 0) + 1, row)


Keys = list[int]


class Requests:
    """The requests of a part for one micro-batch."""

    def __init__(self, hands_on: frozenset[int] = frozenset(), *, is_repeated: bool = False) -> None:
        self.keys, self._hands_on, self.is_repeated = Keys(), hands_on, is_repeated

    def handed_on(self, num_bytes: int, alive: dict[int, int]) -> Keys:
        """Return the latest request of this size that a neighbour gives back; none where neighbours do not match."""
        found = (n for n in reversed(range(len(self.keys))) if n in self._hands_on)
        return next(([self.keys[n]] for n in found if alive.get(self.keys[n]) == num_bytes), [])
