"""Tells for what layers keep, from forward to backward pass, which module's recompute would free it."""

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import chain, groupby

from harness.experiment.model import LayerKind
from harness.experiment.modules import MODULES
from harness.experiment.recompute import FullRecompute, RecomputePolicy, SelectiveRecompute
from harness.predict.rank_parts import Label, Read, num_requests
from harness.predict.stages import Composer
from harness.records.events import OWN, Part, owner_of

_INNER_FIRST = sorted(MODULES, key=lambda name: not MODULES[name].inside)


def by_module(labels: dict[int, Label], composer: Composer, pp_rank: int, read: Read) -> dict[int, Label]:
    """Return the labels of a rank's requests with the module in what a layer's forward pass keeps."""
    modules = dict(_layers(composer, pp_rank, read))
    found = dict(labels)
    for label, run in groupby(labels, key=labels.__getitem__):
        if label[0] == "layers" and label[1] in modules:
            names = modules[label[1]]  # what the first micro-batch makes for all comes before
            placed = zip([*run][-len(names) :], names, strict=True) if names else ()
            found |= {key: (f"layers, {name}", *label[1:]) for key, name in placed if name}
    return found


def _layers(composer: Composer, pp_rank: int, read: Read) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each layer, and the module of each request of its forward pass; empty where none is known."""
    known, kinds = dict[tuple[LayerKind, str], tuple[str, ...]](), composer.layer_kinds
    for chunk in composer.stages[pp_rank]:
        for layer, policy in zip(chunk.layers, composer.settings(chunk), strict=False):  # those of MTP layers are last
            alike = kinds[layer], policy.text
            if alike not in known:
                known[alike] = _modules(composer, kinds[layer], policy, read)
            yield f"layer {layer}", known[alike]


def _modules(composer: Composer, kind: LayerKind, policy: RecomputePolicy, read: Read) -> tuple[str, ...]:
    """Compare what the layer keeps with what it keeps where one more module is recomputed, inner modules first."""
    own = read(composer.make.layers(kind, policy, 3))
    if own is None or isinstance(policy, FullRecompute):
        return ()
    sizes = [row for row in own.layer.forward if row > 0]
    names, active = [""] * len(sizes), policy.modules if isinstance(policy, SelectiveRecompute) else ()
    for module in sorted({*_INNER_FIRST} - {*active}, key=_INNER_FIRST.index):
        others = (name for name in active if MODULES[name].inside != module)
        more = read(composer.make.layers(kind, SelectiveRecompute(modules=(*others, module)), 3))
        for number in _gone(own.layer, more.layer) if more else ():
            names[number] = names[number] or module
    times = (num_requests(composer.spec, kind, size) for size in sizes)
    return tuple(chain.from_iterable([name] * num for name, num in zip(names, times, strict=True)))


def _gone(own: Part, more: Part) -> Iterator[int]:
    """Yield the numbers of what ``more`` does not keep."""
    kept = _kept(own)
    changes = SequenceMatcher(None, [*kept.values()], [*_kept(more).values()], autojunk=False).get_opcodes()
    for tag, begin, end, *_ in changes:
        yield from [*kept][begin:end] if tag in ("delete", "replace") else ()


def _kept(part: Part) -> dict[int, int]:
    """Return the bytes of what the forward pass does not give back itself, by the number of the request."""
    ended = {what for owner, what in (owner_of(row) for row in part.forward if row <= 0) if owner == OWN}
    return {number: size for number, size in enumerate(row for row in part.forward if row > 0) if number not in ended}
