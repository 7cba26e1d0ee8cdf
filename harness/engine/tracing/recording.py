"""Records what the passes of a chunk ask of torch's allocator, in order: before its layers, each layer, behind them."""

import gc
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch

from harness.engine.tracing.chunk import Chunk, Groups, attach_main_grads, build, stage_config, stored_bytes
from harness.engine.tracing.ledger import StorageLedger
from harness.engine.tracing.routing import PLACE, ROUTING
from harness.engine.tracing.run import prepared, refusal
from harness.engine.tracing.tracer import Tracer
from harness.experiment.effective import Implementation
from harness.records.events import BEFORE, BEHIND, BEHIND_BACKWARD, OWN, ChunkEvents, EventsFile, Part, freed
from harness.records.trace import Phase, TraceCase, TraceRequest


class _Pass(NamedTuple):
    """The pass of a part; ``place``: in the chain, 0 what comes before the layers."""

    place: int
    is_backward: bool


class _Journal(StorageLedger):
    """A ledger that also writes down every request, with its bytes, and every end, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[_Pass, list[tuple[int, int]]] = {}
        self._rows_before: dict[_Pass, list[tuple[int, int]]] = {}
        self._now = _Pass(0, is_backward=False)
        self._ids: dict[int, int] = {}
        self._num_requests = 0

    def restart(self) -> None:
        """Write down another micro-batch."""
        self._rows_before, self.rows = self.rows, {}
        self.enter(_Pass(0, is_backward=False))

    def enter(self, now: _Pass) -> None:
        """Write down the pass of another part from here on; ignore a return to one that is over."""
        if now not in self.rows:
            self._now = now
            self.rows[now] = []

    @property
    def is_in_backward(self) -> bool:
        return self._now.is_backward

    def pass_through(self, num_bytes: int) -> None:
        super().pass_through(num_bytes)
        if num_bytes:
            self._begin(-1, num_bytes)
            self._end(-1)

    def _resize(self, entry, num_bytes: int) -> None:
        before = entry.num_bytes
        super()._resize(entry, num_bytes)
        if entry.num_bytes != before:
            self._end(id(entry))
            if entry.num_bytes:
                self._begin(id(entry), entry.num_bytes)

    def _remove(self, key: int) -> None:
        entry = self._entries[key]
        super()._remove(key)
        self._end(id(entry))

    def _begin(self, name: int, num_bytes: int) -> None:
        self._ids[name] = self._num_requests
        self.rows.setdefault(self._now, []).append((self._num_requests, num_bytes))
        self._num_requests += 1

    def _end(self, name: int) -> None:
        number = self._ids.pop(name, None)
        if number is not None:
            self.rows.setdefault(self._now, []).append((number, 0))

    def alive(self, place: int) -> Counter[int]:
        """Return how often a part's passes of the micro-batch before left a storage of so many bytes."""
        kept = set(self._ids.values())
        rows = [row for of, written in self._rows_before.items() if of.place == place for row in written]
        return Counter(num_bytes for number, num_bytes in rows if num_bytes and number in kept)


class _PartTracer(Tracer):
    """Tells the journal where the backward pass begins."""

    @property
    def phase(self) -> Phase:
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase = phase
        if phase == "backward" and not self.ledger.is_in_backward:
            self.ledger.enter(_Pass(self.last_place, is_backward=True))


def record_all(request: TraceRequest, done: Callable[[], object]) -> EventsFile:
    """Record every case of the request."""
    PLACE.device = torch.device(request.device)
    ROUTING.imbalance = request.imbalance
    groups, chunks, refused = Groups(), dict[str, ChunkEvents](), dict[str, str]()
    for case in request.cases:
        if reason := refusal(case, request):
            refused[case.key] = reason
            continue
        try:
            chunks[case.key] = _recorded(case, request.implementation, groups)
        except (ValueError, AssertionError) as error:  # how megatron-core turns down a configuration
            refused[case.key] = f"megatron-core: {error or type(error).__name__}"
        done()
    return EventsFile(chunks=chunks, refused=refused)


def _recorded(case: TraceCase, implementation: Implementation, groups: Groups) -> ChunkEvents:
    spec = prepared(case, implementation, groups)
    chunk = build(case, spec, stage_config(spec))
    assert chunk._micro_batch
    journal = _Journal()
    main_grads = attach_main_grads(chunk.model, chunk._main_grad_dtype)
    for tensor in (*chunk.model.parameters(), *chunk.model.buffers(), *main_grads):
        journal.add(tensor)
    journal.new_epoch()
    num_layers = len(chunk.gpt.decoder.layers)
    _watch(chunk, journal)
    for _ in range(2):  # the first allocates what stays
        tracer = _PartTracer(journal, PLACE.device.type, fuses=PLACE.stands_for_cuda)
        tracer.last_place = num_layers + 1
        journal.restart()
        chunk._pass(tracer)
        gc.collect()
    stay = [journal.alive(place) for place in range(num_layers + 2)]
    middle = (num_layers + 1) // 2
    parts = [
        part.model_copy(update={"stay": tuple(kept.elements()), "parameters": dense, "experts": experts})
        for part, kept, (dense, experts) in zip(
            _parts(journal.rows, num_layers + 2), stay, _parameters(chunk), strict=True
        )
    ]
    shared = sum((kept - stay[middle] for kept in stay[1:-1]), Counter())
    return ChunkEvents(before=parts[0], layer=parts[middle], behind=parts[-1], shared=tuple(shared.elements()))


def _watch(chunk: Chunk, journal: _Journal) -> None:
    """Enter the parts: forward at the layers' calls, backward where the gradient of a part's output is there."""
    layers = chunk.gpt.decoder.layers

    def into(place: int) -> None:
        journal.enter(_Pass(place, journal.is_in_backward))

    def at_gradient(value: object, place: int) -> None:
        tensor = value[0] if isinstance(value, tuple) else value
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            tensor.register_hook(lambda _: journal.enter(_Pass(place, is_backward=True)))

    def before_layers(_module, args, kwargs) -> None:
        given = kwargs.get("hidden_states", args[0] if args else None)
        at_gradient(chunk.gpt.decoder.input_tensor if given is None else given, 0)

    def behind_layer(place: int, out: object) -> None:
        at_gradient(out, place)
        if not journal.is_in_backward:
            into(place + 1)

    chunk.gpt.decoder.register_forward_pre_hook(before_layers, with_kwargs=True)
    for place, layer in enumerate(layers, 1):
        layer.register_forward_pre_hook(lambda *_, place=place: into(place))
        layer.register_forward_hook(lambda _module, _args, out, place=place: behind_layer(place, out))


def _parts(rows: dict[_Pass, list[tuple[int, int]]], num_parts: int) -> list[Part]:
    owners: dict[int, tuple[_Pass, int, int]] = {}
    counts = [0] * num_parts
    for of, written in rows.items():
        for number, num_bytes in written:
            if num_bytes:
                owners[number] = of, counts[of.place], num_bytes
                counts[of.place] += 1

    def row(now: _Pass, number: int, num_bytes: int) -> int | None:
        if num_bytes:
            return num_bytes
        if number not in owners:  # of the micro-batch before
            return None
        of, in_part, num_bytes = owners[number]
        relation = _RELATIONS.get((of.place - now.place, of.is_backward))
        return None if relation is None else freed(relation, num_bytes if relation else in_part)

    def found(now: _Pass) -> tuple[int, ...]:
        every = (row(now, *each) for each in rows.get(now, ()))
        return tuple(each for each in every if each is not None)

    return [Part(forward=found(_Pass(i, False)), backward=found(_Pass(i, True))) for i in range(num_parts)]


_RELATIONS = {
    (0, False): OWN, (0, True): OWN, (-1, False): BEFORE, (1, False): BEHIND, (1, True): BEHIND_BACKWARD,
}  # fmt: skip


def _parameters(chunk: Chunk) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    layers = chunk.gpt.decoder.layers
    place_of = {id(parameter): place for place, layer in enumerate(layers, 1) for parameter in layer.parameters()}
    found = [([], []) for _ in range(len(layers) + 2)]
    for name, parameter in chunk.model.named_parameters():
        place = place_of.get(id(parameter), 0 if "embedding" in name else -1)
        found[place][".experts." in name].append(stored_bytes(parameter))
    return [(tuple(dense), tuple(experts)) for dense, experts in found]
