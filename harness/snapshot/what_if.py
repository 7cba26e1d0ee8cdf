"""Replays the history of a snapshot under other settings of torch's allocator, or with modules recomputed."""

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple

from harness.errors import BadRequestError, Problems, nearest
from harness.experiment.modules import MODULES
from harness.predict.allocator_replay import Event, replayed, sought
from harness.predict.allocator_settings import MIN_BLOCK_BYTES, AllocatorSettings, settings_of
from harness.snapshot.blocks import RESERVING, HeldBlock, held_blocks
from harness.snapshot.fields import SnapshotFormatError, size, text, torchs_layout
from harness.snapshot.stacks import Stacks
from harness.snapshot.values import DeviceMemory, FirstFailure, Question, WhatIf, WhatIfRow
from harness.units import GIB, counted

_ASSUMED_DEVICE_BYTES = 80 * GIB  # it decides only how long an expandable range is, and what a memory fraction means
_PLAN = "instead of --without, plan --recompute MODULE and write that step"
_MOST_GIB = 1 << 20
Entries = Sequence[dict[str, Any]]


class _History(NamedTuple):
    """Requests; a key is a place among them. ``num_before``: blocks of its begin. ``forward``: modules by key."""

    events: list[Event]
    num_before: int
    forward: dict[int, frozenset[str]]


def question_of(settings: Sequence[str], device_gib: float | None, without: Sequence[str] = ()) -> Question | None:
    """Return what is asked, None for nothing. BadRequestError for what torch or megatron-core refuse."""
    if not settings and device_gib is None and not without:
        return None
    problems = Problems()
    for setting in settings:
        problems.tried(partial(settings_of, setting, "--what_if"))
    for module in without:
        problems.tried(partial(modules_of, module))
    if device_gib is not None and not 0 < device_gib < _MOST_GIB:
        problems.add(f"--device_gib {device_gib:g}: no size of a device in GiB", "e.g. --device_gib 80")
    problems.raise_if_any()
    return Question(
        settings=tuple(settings),
        device_bytes=None if device_gib is None else int(device_gib * GIB),
        without=tuple(dict.fromkeys(without)),
    )


@torchs_layout()
def answered(content: dict[Any, Any], device: DeviceMemory, question: Question) -> WhatIf:
    """Return what the device's history takes under each setting. SnapshotFormatError if it has no history."""
    if question.without and content.get("predicted"):
        raise SnapshotFormatError(f"it is a predicted step, whose requests name no module\n{_PLAN}")
    entries = _entries(content, device)
    recorded, notes = _recorded(content)
    held = {block.address: block for block in held_blocks(content, device.device)}
    history = _history(_undone(held, entries), entries)
    undone = (-sign * size(entry, "size") for entry in reversed(entries) if (sign := RESERVING.get(entry["action"])))
    asked, rows = tuple(dict.fromkeys((recorded, *question.settings))), list[WhatIfRow]()
    for modules in ("", *question.without):
        changed, num_blocks = _without(history, modules)
        if modules and not num_blocks:
            notes = (*notes, f"No block of the history was saved by a forward pass of {modules}.")
        for each in asked:
            row = _row(changed, entries, each, question.device_bytes)
            rows.append(row.model_copy(update={"without": modules}))
    return WhatIf(
        device_bytes=question.device_bytes,
        num_requests=sum(event.num_bytes is not None for event in history.events) - history.num_before,
        recorded_reserved_bytes=max(accumulate(undone, initial=device.reserved_bytes)),
        rows=tuple(rows),
        notes=(*notes, *_notes(history, device), *(note for each in asked if (note := settings_of(each).inert))),
    )


def _entries(content: dict[Any, Any], device: DeviceMemory) -> Entries:
    traces = content.get("device_traces") or ()
    entries: Entries = (traces[device.device] or ()) if device.device < len(traces) else ()
    if any(entry["action"] == "alloc" for entry in entries):
        return entries
    remedy = "record one with torch.cuda.memory._record_memory_history()"
    raise SnapshotFormatError(f"it has no history of requests to replay\n{remedy}")


def _without(history: _History, modules: str) -> tuple[_History, int]:
    """Return the history with modules recomputed. What they saved before it began, and never freed, is gone."""
    if not modules:
        return history, 0
    asked, before = modules_of(modules), set[int]()
    mine: dict[str, set[int]] = {module: set() for module in asked}
    for key, found in history.forward.items():
        module = next((each for each in asked if each in found), None)
        if module is not None:
            (before if key < history.num_before else mine[module]).add(key)
    events, num_blocks = recomputed(history.events, mine.values())
    return history._replace(events=[event for event in events if event.key not in before]), num_blocks + len(before)


def modules_of(text: str) -> tuple[str, ...]:
    """Return the modules in ``mlp,core_attn``. BadRequestError for a name that megatron-core cannot recompute."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in MODULES:
            problem = f"--without {text}: no module of recompute: {name!r}"
            raise BadRequestError(problem, remedy=nearest(name, MODULES))
    return names


def recomputed(events: Sequence[Event], modules: Iterable[Container[int]]) -> tuple[list[Event], int]:
    """Return the events with the passes of modules (keys of their blocks) recomputed, and how many blocks end early.

    Requests of one pass follow each other. What outlives the beginning of the module's next pass was saved: it is given
    back when its own pass ends, and asked again in the backward pass. The last pass stays as it is.
    """
    freed = {event.key: place for place, event in enumerate(events) if event.num_bytes is None}
    more: dict[int, list[Event]] = {}
    num_blocks = 0
    for mine in modules:
        for (keys, end), (following, _) in pairwise(_passes(events, mine)):
            saved = [key for key in keys if freed.get(key, len(events)) > following[0]]
            num_blocks += len(saved)
            more.setdefault(end, []).extend(Event(key, None) for key in saved)
            again = [key for key in saved if key in freed]
            if again:
                more.setdefault(min(freed[key] for key in again), []).extend(events[key] for key in again)
    changed: list[Event] = []
    for place, event in enumerate(events):
        changed += more.get(place, ())
        changed.append(event)
    return changed, num_blocks


def _passes(events: Sequence[Event], mine: Container[int]) -> list[tuple[list[int], int]]:
    passes: list[tuple[list[int], int]] = []
    is_open = False
    for place, event in enumerate(events):
        if event.num_bytes is None:
            continue
        if event.key not in mine:
            if is_open:
                passes[-1] = passes[-1][0], place
        elif is_open:
            passes[-1][0].append(event.key)
        else:
            passes.append(([event.key], len(events)))
        is_open = event.key in mine
    return passes


def _recorded(content: dict[Any, Any]) -> tuple[str, tuple[str, ...]]:
    named = content.get("allocator_settings")
    value = named.get("PYTORCH_CUDA_ALLOC_CONF") if isinstance(named, dict) else None
    if not isinstance(value, str):
        return "", ("The snapshot does not name its settings: the first row has torch's defaults.",)
    settings = text(value)
    try:
        settings_of(settings, where="the snapshot's PYTORCH_CUDA_ALLOC_CONF")
    except BadRequestError as error:
        return "", (f"{error.message}: the first row has torch's defaults.",)
    return settings, ()


def _undone(held: dict[int, HeldBlock], entries: Entries) -> list[HeldBlock]:
    """Return the blocks before the first event, by address: those at the end, every event undone."""
    for entry in reversed(entries):
        if entry["action"] == "alloc":
            held.pop(size(entry, "addr"), None)
        elif entry["action"] == "free_completed":
            rounded = -(-max(size(entry, "size"), 1) // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
            address = size(entry, "addr")
            held[address] = HeldBlock(address, rounded, size(entry, "stream", 0), None)
    return sorted(held.values(), key=lambda block: block.address)


def _history(before: list[HeldBlock], entries: Entries) -> _History:
    """Return the requests: first what was there before, by address. One that failed is asked again and ends at once."""
    events, keys, stacks = list[Event](), dict[int, int](), Stacks()
    forward: dict[int, frozenset[str]] = {}

    def ask(num_bytes: int, stream: int, frames: object) -> int:
        key = len(events)
        events.append(Event(key, num_bytes, stream))
        if found := stacks.of(frames).forward:
            forward[key] = found
        return key

    for block in before:
        keys[block.address] = ask(block.num_bytes, block.stream, block.frames)
    for entry in entries:
        if entry["action"] in ("alloc", "oom"):
            key = ask(size(entry, "size"), size(entry, "stream", 0), entry.get("frames"))
            if entry["action"] == "alloc":
                keys[size(entry, "addr")] = key
            else:
                events.append(Event(key, None))
        elif entry["action"] == "free_completed":
            ended = keys.pop(size(entry, "addr"), None)
            events += [] if ended is None else [Event(ended, None)]
    return _History(events, len(before), forward)


def _row(history: _History, entries: Entries, asked: str, device_bytes: int | None) -> WhatIfRow:
    settings, total = settings_of(asked), max(_ASSUMED_DEVICE_BYTES, device_bytes or 0)
    if device_bytes is not None and settings.memory_fraction is not None:
        total = device_bytes
    free, fits = sought(history.events, settings, total)
    return WhatIfRow(
        settings=asked,
        allocated_bytes=free.peak_allocated_bytes,
        reserved_bytes=free.peak_reserved_bytes,
        fits_bytes=fits,
        failure=None if device_bytes is None else _failure(history, entries, settings, device_bytes),
    )


def _failure(
    history: _History, entries: Entries, settings: AllocatorSettings, device_bytes: int
) -> FirstFailure | None:
    outcome = replayed(history.events, settings, device_bytes, device_bytes)
    if outcome.failed is None:
        return None
    failed = history.events[outcome.failed]
    asked = {event.key for event in history.events[: outcome.failed + 1] if event.key >= history.num_before}
    number = len(asked) * (failed.key >= history.num_before)
    frames = (entry.get("frames") for entry in entries if entry["action"] in ("alloc", "oom"))
    owner = Stacks().of(next(islice(frames, number - 1, None), None)).owner if number > 0 else None
    return FirstFailure(
        number=number,
        request_bytes=failed.num_bytes or 0,
        allocated_then_bytes=outcome.allocated_bytes,
        reserved_then_bytes=outcome.reserved_bytes,
        module=owner.module if owner else "",
        site=owner.site if owner else "",
    )


def _notes(history: _History, device: DeviceMemory) -> Iterator[str]:
    if history.num_before:
        blocks = counted(history.num_before, "block")
        yield (
            f"The history begins in mid-run with {blocks}: earlier peaks and gaps are unknown, "
            "so Reserved and Fits in may be too low."
        )
    if device.private_reserved_bytes:
        yield "A history does not name private pools: their blocks are replayed outside them, and figures may be low."
