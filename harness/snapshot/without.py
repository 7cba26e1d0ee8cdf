"""Changes a history as if a module's forward pass were recomputed."""

from collections.abc import Container, Iterable, Sequence
from itertools import pairwise

from harness.errors import BadRequestError, nearest
from harness.experiment.modules import MODULES
from harness.predict.allocator_replay import Event


def modules_of(text: str) -> tuple[str, ...]:
    """Return the modules in ``mlp,core_attn``. BadRequestError for a name that megatron-core cannot recompute."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in MODULES:
            problem = f"--without {text}: no module of recompute: {name!r}"
            raise BadRequestError(problem, remedy=nearest(name, MODULES))
    return names


def recomputed(events: Sequence[Event], modules: Iterable[Container[int]]) -> tuple[list[Event], int]:
    """Return the events with the forward passes of modules recomputed, and how many saved blocks that ends early.

    ``modules``: for each, the keys of blocks that its forward passes asked for; a key is the place of its request.
    Requests of one pass follow each other. What outlives the beginning of the module's next pass was saved: it is given
    back when its own pass ends, and asked again before the first of it is freed, which is its backward pass. The last
    pass stays as it is, because nothing shows what it saved.
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
    """Return the keys of each pass, and the place of the first request behind it."""
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
