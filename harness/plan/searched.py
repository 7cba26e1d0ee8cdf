"""A search over layouts: the request that it begins with, what it tried, the best, their commands, and its JSON."""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf
from typing import Any

from harness.errors import BadRequestError
from harness.foreign.exporting import to_paste
from harness.launch.environment import Host
from harness.measure.understanding import RunRequest, Settled, settle
from harness.plan.request import PlanRequest
from harness.plan.run import Layout, leanest
from harness.predict.layouts import Sizes
from harness.predict.prediction import Verdict
from harness.predict.search import Row
from harness.resolve.points import choose_point
from harness.resolve.recipe import ASSUMED, Request
from harness.resolve.resolve import recipe_of
from harness.resolve.sweep_file import RECOMPUTE_OPTIONS, SIZES
from harness.show.json import Shown, at
from harness.units import grouped

# How many layouts are recommended, and the multiple of the fastest step above which a search ignores a layout.
NUM_BEST, SLOWEST = 10, 1.5


def settled_for_search(request: PlanRequest, host: Host) -> Settled:
    """Settle the request; without a global batch size with the point's samples per GPU, unfit sizes at 1."""

    def settled(asked: Request) -> Settled:
        return settle(RunRequest(asked=asked), host, request.assume, gpu_point=True)

    asked, options = request.asked, {SIZES[name]: "none" if name == "vp" else 1 for name in Sizes._fields}
    nothing: dict[str, Any] = dict.fromkeys(("num_gpus", *options))
    try:
        own = settled(replace(asked, **nothing))
        if asked.num_gpus and asked.source is None:
            known: dict[str, Any] = {"gpu": own.spec.gpu, **own.from_point}
            point = choose_point(recipe_of(asked), replace(asked, **known)).point.key.num_gpus
            own = settled(replace(asked, **nothing | {"num_gpus": point}))
    except BadRequestError:  # no point without its number of GPUs, or the request is wrong
        return settled(asked)
    base, num_gpus, note = own.spec, asked.num_gpus or own.spec.num_gpus, ""
    if asked.global_batch_size is None and num_gpus != base.num_gpus:
        was = base.batch.global_batch_size
        asked = replace(asked, global_batch_size=(now := max(1, was * num_gpus // base.num_gpus)))
        note = f"{ASSUMED}: global {now}, as it is {was} on {base.num_gpus} GPUs; change with -gb"
    try:
        found = settled(asked)
    except BadRequestError:
        ones: dict[str, Any] = {option: one for option, one in options.items() if getattr(asked, option) is None}
        found = settled(replace(asked, **ones))
    return replace(found, notes=(*found.notes, note)) if note else found


@dataclass(frozen=True)
class Tried(Layout):
    """One layout of a search. ``settings``: what a request needs beside the sizes, as for `--set`."""

    sizes: Sizes = field(kw_only=True)
    settings: tuple[str, ...] = field(kw_only=True)

    @cached_property
    def seconds(self) -> float:
        return _seconds(self.row) if self.row else inf

    @property
    def rank(self) -> tuple[bool, float]:
        """Return a sort key: what fits with its whole range comes before what is tight."""
        return self.row is None or self.row.verdict == "TIGHT", self.seconds

    @cached_property
    def least_seconds(self) -> float:
        """Return the step time without recompute, which no other setting of the layout beats."""
        control = self.plan.control
        return _seconds(control) if control else 0.0

    @property
    def computing(self) -> float:
        """Return the seconds of a step without recompute and without the pipeline's bubble; 0 where it is not known."""
        control = self.plan.control
        return control.prediction.time.compute_s if control and control.prediction and control.prediction.time else 0.0


def _seconds(row: Row) -> float:
    return row.prediction.time.likely_s if row.prediction and row.prediction.time else inf


@dataclass
class Searched:
    """What a search knows so far.

    ``counts``: layouts by how they ended. ``interrupted``: it ended early, by the user or, where ``is_time_up``, by
    `--max_minutes`. ``too_few``: numbers of GPUs into which nothing fits. ``nearest``: of the layouts that do not fit,
    the one that lacks the fewest bytes.
    """

    base: Settled
    tried: dict[Sizes, Tried] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    num_layouts: int = 0
    interrupted: bool = False
    is_time_up: bool = False
    sources: tuple[str, ...] = ()
    fastest: float = inf
    nearest: Tried | None = None
    too_few: tuple[int, ...] = ()

    def add(self, tried: Tried) -> None:
        """Keep a layout and replace its earlier plan; lower ``fastest`` if it surely fits and is faster."""
        self.tried[tried.sizes] = tried
        if not tried.rank[0]:
            self.fastest = min(self.fastest, tried.seconds)

    @property
    def best(self) -> list[Tried]:
        """Return the fastest layouts, the one to use first; of those that differ in VP alone the leanest."""
        groups = self._by_vp
        every = map(leanest, groups) if len(groups) > 1 else (each for each in self.tried.values() if each.row)
        found = sorted(filter(None, every), key=lambda each: each.rank)
        first = leanest(found)
        return sorted(found, key=lambda each: each is not first)[:NUM_BEST]

    @property
    def _by_vp(self) -> list[list[Tried]]:
        return [*grouped((each.sizes._replace(vp=None), each) for each in self.tried.values()).values()]

    @property
    def worst_of_best(self) -> float:
        """Return the step time that a layout must beat to be among the best; infinite while there are too few."""
        best = [each for each in self.best if not each.rank[0]]
        return best[-1].seconds if len(best) == NUM_BEST else inf

    @property
    def pareto(self) -> list[tuple[Tried, Row]]:
        """Return the fitting settings that no other predicted one beats in both memory and time, smallest first."""
        slowest = SLOWEST * self.fastest
        rows = [
            (row.prediction.peak_bytes, _seconds(row), each, row)
            for each in self.tried.values()
            for row in each.plan.rows
            if row.prediction and row.verdict != "OOM" and _seconds(row) <= slowest
        ]
        front: list[tuple[Tried, Row]] = []
        fastest = inf
        for _, seconds, each, row in sorted(rows, key=lambda found: found[:2]):
            if seconds < fastest:
                fastest = seconds
                front.append((each, row))
        return front


def command(tried: Tried, row: Row, request: PlanRequest) -> str:
    """Return the command that runs a setting of a layout."""
    spec = tried.settled.spec
    words = ["mbr-perf", "run", *request.asked.job_words, "--task", spec.task, "-g", spec.gpu, "-c", spec.compute_dtype,
             "-ng", str(spec.num_gpus), "-gb", str(spec.batch.global_batch_size)]  # fmt: skip
    for name, value in tried.sizes._asdict().items():
        if value is not None or name == "vp":
            words += [f"-{name}", "none" if value is None else str(value)]
    for setting in tried.settings:
        words += ["--set", setting]
    return shlex.join([*words, *_given(request.asked), "--recompute", row.text])


_NAMED = {
    "model_recipe_name",
    "source",
    "task",
    "gpu",
    "compute_dtype",
    "num_gpus",
    "global_batch_size",
    *SIZES.values(),
    *RECOMPUTE_OPTIONS,
}


def _given(asked: Request) -> Iterator[str]:
    """Yield the options of the request that a layout does not change; recompute is the search's answer."""
    for item in fields(asked):
        value = getattr(asked, item.name)
        if item.name in _NAMED or value in (None, (), item.default):
            continue
        option = {"set_values": "--set", "env": "--env"}.get(item.name, f"--{item.name}")
        for each in value if isinstance(value, tuple) else (value,):
            yield from (option,) if each is True else (option, str(each))


class SearchedRow(Shown):
    """One setting of one layout that a search found. ``command`` runs it; the others set it in other programs."""

    layout: str
    recompute: str = at("text")
    peak_bytes: int = at("prediction", "peak_bytes")
    step_time_s: float | None = at("prediction", "time", "likely_s")
    verdict: Verdict | None
    command: str
    bridge: str
    megatron_lm: str
    without: tuple[str, ...]


class ClosestRow(Shown):
    """The layout that lacks the fewest bytes."""

    layout: str
    recompute: str
    needs_bytes: int


class SearchDocument(Shown):
    """``plan --search``. ``layouts``: of ``num_layouts`` by how they ended; ``closest``: null where one fits."""

    num_layouts: int
    interrupted: bool
    is_time_up: bool
    too_few: tuple[int, ...] = ()
    layouts: dict[str, int]
    best: tuple[SearchedRow, ...]
    pareto: tuple[SearchedRow, ...]
    closest: ClosestRow | None


def search_document(found: Searched, request: PlanRequest) -> SearchDocument:
    """Return the part of the document that only a search has; the document around it describes the best layouts."""

    def row(tried: Tried, row: Row) -> SearchedRow:
        pasted = to_paste(row.candidate.spec, found.base.spec, with_sizes=True)
        return SearchedRow.of(row, pasted, layout=tried.name, command=command(tried, row, request))

    best, near = [row(each, each.row) for each in found.best if each.row], found.nearest
    closest = None
    if near and not best and (prediction := near.smallest.prediction):
        closest = ClosestRow(layout=near.name, recompute=near.smallest.text, needs_bytes=prediction.fits[1])
    return SearchDocument.of(
        found,
        layouts=dict(found.counts),
        best=best,
        pareto=[row(*each) for each in found.pareto],
        closest=closest,
    )
