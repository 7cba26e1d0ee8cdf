"""Composes what a rank asks of torch's allocator over its first steps: build, schedule, optimizer.

The order is that of a real rank (the whole history of a scripted rank, results/accuracy/reserved.md): parameters are
made one by one and then copied into DDP's buffers, so that their segments are left, cached and of odd sizes, before the
first step; optimizer states come at its end and settle in segments of activations.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, groupby
from typing import TYPE_CHECKING

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.optimizer_states import shards_of
from harness.predict.allocator_replay import Cycle, Request
from harness.predict.allocator_settings import SMALL_BYTES
from harness.predict.compose import ChunkCost
from harness.predict.ledger import StageMemory, deferred_bytes, gathered_inputs_bytes, library_bytes
from harness.predict.model_states import ModelStates, StateBytes, model_states, owned_parts, state_bytes, state_parts
from harness.predict.rank_parts import ChunkParts, Keys, Label, Requests, Unit, shared_by
from harness.predict.schedule import Schedule, keeps_outputs, schedule_of
from harness.predict.step_history import Steps
from harness.records.events import BEFORE, BEHIND, BEHIND_BACKWARD, OWN, owner_of
from harness.units import MIB

if TYPE_CHECKING:
    from harness.predict.draws import Draw

# Of DDP's buffers, which megatron-core builds on a stream of its own; the allocator keeps a stream's blocks to itself.
_BUILD_STREAM = 1
# torch hands out streams of its pool in turn (c10/cuda/CUDAStream.cpp `kStreamsPerPool`).
_FIRST_STREAM, _NUM_STREAMS = 2, 32
_WORKSPACE_BYTES = 32 * MIB
_SCALES_BYTES = 8  # of an FP8 weight in a trace
ROUNDS = 2  # micro-batches of a step that are composed, in multiples of the pipeline's
_LAST = 3  # micro-batches that end and repeat a step; the very last may run in another way
_owner_of = cache(owner_of)  # of the few rows that every micro-batch has
_NUM_STEPS = 2  # the first makes the states; the second has them, and later ones are alike


class _Memory:
    """The sequence so far. Requests of the allocator's small pool are only added up: it keeps segments of its own."""

    def __init__(self, draw: "Draw | None") -> None:
        self.alive: dict[int, int] = {}
        self._events: list[Request] = []
        self._num = self._small = self._most_small = 0
        self.label, self._labels = Label(), dict[int, Label]()
        self.step, self._marks = 0, [(0, 0, "build")]
        self._draw, self._share, self._load, self._unit = draw, 1.0, 1.0, Unit(())
        self._late_sizes = frozenset[int]()
        self._beside: dict[int, Keys] = {}
        self._gradients, self._waits = set[int](), list[int]()
        self.edges, self._cycles = list[tuple[int, int]](), list[Cycle]()

    def enter(self, unit: Unit, microbatch: int, what: str = "") -> None:
        """Let a part run for a micro-batch of this step."""
        self.label, self._unit = unit.asks(microbatch, what), unit
        self._late_sizes = unit.gradients if what == "backward" else frozenset()
        if self._draw:
            self._share = self._draw.length(self.step, microbatch)
            self._load = self._draw.load(self.step, microbatch, unit.layer) if unit.routed else 1.0

    def scaled(self, num_bytes: int) -> int:
        """Return the bytes of a request for as many tokens as the micro-batch, or the experts of the layer, have."""
        if num_bytes in self._unit.fixed:
            return num_bytes
        return int(num_bytes * self._share * (self._load if num_bytes in self._unit.routed else 1.0))

    def _stream(self, num_bytes: int) -> int:
        return _FIRST_STREAM + self._unit.layer % _NUM_STREAMS if num_bytes in self._unit.aside else 0

    def mark(self, phase: str) -> None:
        """Begin a phase of the step."""
        self._marks.append((len(self._events), self.step, phase))

    def wait(self) -> None:
        """Let the host wait for all streams."""
        self._waits.append(len(self._events))

    def edge(self) -> None:
        """Begin a forward and a backward pass that may be as those before."""
        self.edges.append((len(self._events), self._num))

    def repeat(self, times: int) -> None:
        """Note the step's last passes but one as what the job repeats, if they are those before them with new keys."""
        edges, self.edges = self.edges, []
        if len(edges) < 5 or not times:  # the first two pairs of passes make what stays, their buffers too
            return
        (earlier, _), (begin, before), (end, number) = edges[-3:]
        first, shift = edges[2][1] + 1, number - before
        moved = [(key + shift * (key >= first), *rest) for key, *rest in self._events[earlier:begin]]
        if moved == self._events[begin:end]:
            self._cycles.append(Cycle(begin, end, first, shift, times))

    def take(self, num_bytes: int, stream: int = 0) -> int:
        """Ask for bytes; return the name of the request."""
        self._num += 1
        self.alive[self._num] = num_bytes
        self._labels[self._num] = self.label
        if num_bytes > SMALL_BYTES:
            self._events.append((self._num, num_bytes, stream))
        else:
            self._small += num_bytes
            self._most_small = max(self._most_small, self._small)
        return self._num

    def _ask(self, row: int) -> int:
        """Ask for a row of the part that runs; where it stands for one request of each expert, for all of these."""
        size, num = self.scaled(row), self._unit.num_experts if row in self._unit.split else 1
        first, *others = [self.take(size // num, self._stream(row)) for _ in range(num)]
        if row in self._late_sizes:
            self._gradients.add(first)
        if others:
            self._beside[first] = others
        return first

    def take_all(self, sizes: Iterable[float], *label: str) -> Keys:
        """Ask for each of these, without those below a byte."""
        self.label = label
        return [self.take(round(size)) for size in sizes if size >= 1]

    def free(self, *keys: int) -> None:
        """Give back what is still there."""
        for key in keys:
            if key in self._beside:
                self.free(*self._beside.pop(key))
            num_bytes = self.alive.pop(key, None)
            if num_bytes and num_bytes > SMALL_BYTES:
                self._events.append((key, None, 0))
            else:
                self._small -= num_bytes or 0

    def steps(self, num_left: int = 0) -> Steps:
        """Return the sequence, after as many bytes of the small pool as it ever has."""
        small = [(-number, SMALL_BYTES, 0) for number in range(1, 1 - -self._most_small // SMALL_BYTES)]
        labels = self._labels | dict.fromkeys((key for key, *_ in small), ("overhead", "small requests"))
        marks = tuple((at and at + len(small), step, phase) for at, step, phase in self._marks)
        cycles = tuple(each._replace(begin=each.begin + len(small), end=each.end + len(small)) for each in self._cycles)
        left = 0 if len(cycles) == self.step else num_left
        waits = tuple(at + len(small) for at in self._waits)
        return Steps((*small, *self._events), labels, marks, cycles, left, frozenset(self._gradients), waits)

    def run(self, rows: tuple[int, ...], own: Requests, before: Requests, behind: Requests) -> None:
        """Run a pass of a part, whose requests are added to ``own``."""
        neighbours = {BEFORE: before, BEHIND: behind, BEHIND_BACKWARD: behind}
        special, is_drawn = self._unit.aside | self._unit.split | self._late_sizes, self._draw is not None
        for row in rows:
            if row > 0:
                own.keys.append(self._ask(row) if is_drawn or row in special else self.take(row))
                continue
            owner, what = _owner_of(row)
            if owner == OWN:
                self.free(own.keys[what])
            else:
                self.free(*neighbours[owner].handed_on(self.scaled(what), self.alive))


class _Chunk:
    """A chunk as it runs: the requests of each unit for every micro-batch in flight."""

    def __init__(self, parts: ChunkParts, memory: _Memory, output_bytes: int, name: str) -> None:
        self._units, self._memory, self._output_bytes, self._name = parts.units, memory, output_bytes, name
        self._in_flight: deque[tuple[list[Requests], Keys]] = deque()
        self._left: list[Keys] = [[] for _ in parts.units]
        self._is_first = True
        self.num_done = 0  # micro-batches of this step

    def forward(self) -> None:
        """Run the next micro-batch forward."""
        memory, done, number = self._memory, list[Requests](), self.num_done + len(self._in_flight)
        memory.mark(f"forward, micro-batch {number}{self._name}")
        for unit, left in zip(self._units, self._left, strict=True):
            memory.free(*left)
            memory.enter(unit, number)
            for size in unit.stay if self._is_first else ():
                memory.take(size)
            before = done[-1] if done else Requests()
            for inner, passes in enumerate(unit.passes):
                own = Requests(passes.hands_on)
                memory.run(passes.forward, own, before, Requests())
                if inner:  # one checkpoint keeps only what went into its first layer
                    memory.free(*before.keys)
                before = own
            done.append(before)
        self._is_first = False
        self._in_flight.append((done, [memory.take(memory.scaled(self._output_bytes))] if self._output_bytes else []))

    def backward(self) -> None:
        """Run the oldest micro-batch backward. What it leaves stays until its unit runs again."""
        memory, behind = self._memory, Requests()
        memory.mark(f"backward, micro-batch {self.num_done}{self._name}")
        done, output = self._in_flight.popleft()
        for place in reversed(range(len(self._units))):
            unit, before = self._units[place], done[place - 1] if place else Requests()
            if unit.waits:
                memory.wait()
            memory.enter(unit, self.num_done, "recompute")
            own = self._again(unit, before) or [done[place]]
            memory.enter(unit, self.num_done, "backward")
            for at in reversed(range(len(own))):
                memory.run((unit.again or unit.passes)[at].backward, own[at], own[at - 1] if at else before, behind)
                if behind.is_repeated:
                    memory.free(*behind.keys)  # also the output that was made a second time
                behind = own[at]
            if unit.again:
                memory.free(*done[place].keys)
            done[place] = behind
        memory.free(*output, *chain.from_iterable(self._left))
        self._left = [[key for key in each.keys if key in memory.alive] for each in done]
        self.num_done += 1

    def _again(self, unit: Unit, before: Requests) -> list[Requests]:
        own = list[Requests]()
        for passes in unit.again:
            own.append(Requests(passes.hands_on, is_repeated=True))
            self._memory.run(passes.forward, own[-1], own[-2] if len(own) > 1 else before, Requests())
        return own


def rank_steps(
    spec: ExperimentSpec,
    stage: StageMemory,
    costs: tuple[ChunkCost, ...],
    chunks: Sequence[ChunkParts],
    draw: "Draw | None" = None,
) -> Steps:
    """Return the requests of a stage's first rank from its build to the end of its second step, or of a draw's."""
    memory, shared = _Memory(draw), shared_by(parts.shared for parts in chunks)
    chunks = [parts.without(shared) for parts in chunks]
    owned = _build(spec, stage, chunks, memory)
    master, in_step = state_parts(spec)
    memory.take_all((size * master for sizes in owned for size in sizes), "optimizer")
    hidden, workspaces = costs[0].hidden_bytes, library_bytes(spec, costs)
    keeps = hidden if keeps_outputs(spec) else 0
    running = [
        _Chunk(parts, memory, 0 if parts.has_loss else keeps, f", chunk {n}" * (len(chunks) > 1))
        for n, parts in enumerate(chunks)
    ]
    schedule, states = schedule_of(spec, stage.pp_rank), model_states(spec, stage.parameters, adam=stage.adam)
    num_left = 0
    if schedule.num_deferred:  # the gradients of all of these wait
        memory.take_all([gathered_inputs_bytes(spec)], "overhead", "gathered inputs")
    else:
        num_left = max(0, schedule.num_microbatches - _enough(schedule, repeats=not draw))
        schedule = replace(schedule, num_microbatches=schedule.num_microbatches - num_left)
    pieces = range(0, workspaces, _WORKSPACE_BYTES)
    due: list[float] = [min(_WORKSPACE_BYTES, workspaces - at) for at in pieces]
    due = [*shared, *due]  # what all layers share, and workspaces of libraries
    for step in range(draw.num_steps if draw else _NUM_STEPS):
        memory.step = step + 1
        _run_passes(spec, schedule, running, memory, hidden, due)
        memory.repeat(num_left)
        memory.mark("optimizer")
        _step(memory, states, owned, in_step if step == 0 else (), state_bytes(spec, stage.adam))
    return memory.steps(num_left)


def _enough(schedule: Schedule, *, repeats: bool) -> int:
    """Return the micro-batches to compose: every kind of pass, once all that fit are in flight, and what may repeat."""
    most = ROUNDS * max(schedule.pp_size, schedule.group_size or 1)
    return most + _LAST * (repeats and schedule.vp_size == 1)


def _step(
    memory: _Memory, states: ModelStates, owned: list[list[float]], made: tuple[float, ...], per: StateBytes
) -> None:
    """Run the optimizers. ``owned``: elements of each parameter by optimizer; ``made``: bytes of its new states each.

    transformer-engine's FusedAdam makes a parameter's states and widens them before it goes on with the next parameter
    (2.11 `step`), so that the widened ones leave a hole beside every parameter's states.
    """
    total = sum(map(sum, owned))
    copies = memory.take_all((states.copies * size / total for sizes in owned for size in sizes), "transient")
    for sizes in owned:
        widened = Keys()
        for size in sizes:
            memory.take_all((size * each for each in made), "optimizer")
            widened += memory.take_all([4 * size] * (per.widened // 4), "transient")
        memory.free(*widened)
    rest = states.step_transient - states.copies - per.widened * max(map(sum, owned), default=0)
    memory.free(*memory.take_all((rest * size / total for sizes in owned for size in sizes), "transient"), *copies)


def _run_passes(
    spec: ExperimentSpec, schedule: Schedule, running: list[_Chunk], memory: _Memory, hidden: int, due: list[float]
) -> None:
    """Run the micro-batches of a step. ``due``: what the first backward pass makes."""
    buffers, waiting = Keys(), Keys()
    for chunk in running:
        chunk.num_done = 0
    steady = range(schedule.num_warmup, 2 * schedule.num_passes - schedule.num_warmup, 2)
    for at, event in enumerate(schedule.events()):
        if at in steady and schedule.vp_size == 1:
            memory.edge()
        if schedule.pp_size > 1 and schedule.vp_size == 1:
            memory.wait()  # messages go in batches (0.16 `P2PCommunicator._communicate`)
        memory.free(*buffers[event.buffers :])
        del buffers[event.buffers :]
        buffers += memory.take_all([hidden] * (event.buffers - len(buffers)), "transient", "received states")
        if event.direction == "forward":
            running[event.chunk].forward()
            continue
        memory.take_all(due, "overhead", "workspaces")
        due.clear()
        running[event.chunk].backward()
        if event.chunk + 1 == len(running) and len(waiting) < schedule.num_deferred:
            waiting += memory.take_all([deferred_bytes(spec)], "transient", "deferred gradients")
    memory.free(*buffers, *waiting)
    memory.wait()  # for the norm of the gradients


def _build(
    spec: ExperimentSpec, stage: StageMemory, chunks: Sequence[ChunkParts], memory: _Memory
) -> list[list[float]]:
    """Make the parameters and DDP's buffers; return the elements of each parameter by optimizer of the rank."""
    memory.label = ("weights",)
    kinds = [((parts.parameters, False), (parts.experts, True)) for parts in chunks]
    made = [[_weights(sizes, memory, grouped=grouped) for sizes, grouped in each] for each in kinds]
    stored = sum(size for parts in chunks for size in (*parts.parameters, *parts.experts))
    owned: list[list[float]] = [[], []]
    # rounded: states of exactly the size of a parameter settle in the segment that it leaves
    bytes_per_element = round(stored / (stage.parameters.dense + stage.parameters.expert), 2)
    for number, (parts, keys) in enumerate(zip(chunks, made, strict=True)):
        for is_expert, sizes in enumerate((parts.parameters, parts.experts)):
            elements = [size / bytes_per_element for size in sizes]
            moved = keys[is_expert] if spec.optimizer.use_distributed_optimizer else []
            if sizes:
                _make_buffers(memory, moved, round(sum(elements) * state_bytes(spec).gradient))
            has_buckets = spec.ddp.overlap_grad_reduce and not stage.pp_rank and not number
            owned[is_expert] += owned_parts(elements, shards_of(spec)[is_expert], has_buckets=has_buckets)
    return owned if spec.parallelism.expert_model_parallel_size > 1 else [[*chain.from_iterable(owned)]]


def _make_buffers(memory: _Memory, moved: Keys, gradient_bytes: int) -> None:
    """Make DDP's buffers: of the parameters ``moved`` into one, and of their gradients."""
    if moved:
        memory.label = "weights", "buffer"
        memory.take(sum(memory.alive[key] for key in moved), _BUILD_STREAM)
    memory.label = ("gradients",)
    memory.take(gradient_bytes, _BUILD_STREAM)
    memory.free(*reversed(moved))


def _weights(sizes: Sequence[int], memory: _Memory, *, grouped: bool) -> Keys:
    """Make parameters; return those that move into a buffer of DDP. ``grouped``: a module makes all of one size.

    transformer-engine makes an FP8 weight in bf16 and quantises it into two layouts; the second stays where it is
    (2.11 `Float8Quantizer.quantize_impl`). A grouped linear layer makes the weights of all its experts before it
    quantises the first (`GroupedLinear.reset_parameters`). A trace counts both layouts, and 8 bytes of scales.
    """
    moved = Keys()
    for size, run in groupby(sizes):
        num = sum(1 for _ in run)
        if size % 16 != _SCALES_BYTES:
            moved += [memory.take(size) for _ in range(num)]
            continue
        at_once = num if grouped else 1
        for _ in range(num // at_once):
            whole = [memory.take(size - _SCALES_BYTES) for _ in range(at_once)]
            for _ in whole:
                moved.append(memory.take((size - _SCALES_BYTES) // 2))
                memory.take((size - _SCALES_BYTES) // 2)
            memory.free(*whole)
    return moved
