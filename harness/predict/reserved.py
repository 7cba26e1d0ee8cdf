"""What torch's allocator takes of a device: replayed where a rank's requests are known, else by the class of the job.

The figures of classes are in `reserved.json`, which `scripts/accuracy reserved` writes from ranks on scripted GPUs.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import compress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from harness.errors import BadRequestError
from harness.experiment.experiment import ExperimentSpec
from harness.predict.allocator_replay import Outcome, peak_of, replayed, sought
from harness.predict.allocator_settings import AllocatorSettings
from harness.predict.compose import ChunkCost
from harness.predict.ledger import StageMemory
from harness.predict.ranges import CLASSES, class_of
from harness.predict.rank_events import rank_steps
from harness.predict.rank_parts import MissingEventsError, Read, chunk_parts
from harness.predict.schedule import schedule_of
from harness.predict.stages import Composer
from harness.predict.step_history import Steps
from harness.records.prediction import Source
from harness.units import GIB

if TYPE_CHECKING:
    from harness.predict.draws import Draw

DATA = Path(__file__).with_name("reserved.json")


@dataclass(frozen=True)
class Drawn:
    """The least and the most bytes of draws: their peaks, the smallest devices, and what they reserve."""

    peak_bytes: tuple[int, int]
    fits_bytes: tuple[int, int]
    reserved_bytes: tuple[int, int]


@dataclass(frozen=True)
class Held:
    """What torch's allocator takes for one stage, in bytes, each as lower end, likely value and upper end.

    ``in_time``: what is reserved where side streams are never behind. ``behind``: what those that always are add to its
    upper end, replayed when it is called. ``fits``: the smallest device on which nothing fails. ``drawn``: of draws.
    """

    in_time: tuple[int, int, int]
    fits: tuple[int, int, int]
    source: Source
    drawn: Drawn | None = None
    behind: Callable[[], int] = field(default=int, compare=False, repr=False)


@dataclass(frozen=True)
class Ratios:
    """Of a class of jobs under one allocator setting: shares of the peak, as `Held`.

    ``late``: what side streams that are always behind reserve, as a share of what others do. ``cut``: of what the
    replayed micro-batches take, the ends of what four times as many do: both of reserved, both of fits.
    """

    reserved: tuple[float, float, float]
    fits: tuple[float, float, float]
    late: float
    late_replayed: float
    cut: tuple[float, float, float, float]


@cache
def _ratios() -> dict[str, dict[str, Ratios]]:
    rows = json.loads(DATA.read_text())["classes"]
    return {name: {how: Ratios(**row) for how, row in settings.items()} for name, settings in rows.items()}


def ratios_of(spec: ExperimentSpec, peak_bytes: int, settings: AllocatorSettings) -> Ratios:
    """Return the ratios of a job's class; of its nearest class where it has no rows."""
    nearest = {row.name: row.nearest for row in CLASSES}
    name = class_of(spec, peak_bytes).name
    while name not in _ratios():
        name = nearest[name] or CLASSES[-1].name
    return _ratios()[name]["expandable" if settings.expandable_segments else "native"]


def estimated(spec: ExperimentSpec, stage: StageMemory, settings: AllocatorSettings) -> Held:
    """Return what a stage takes by the ratios of its class.

    CUDA graphs add their private pools to what the step holds outside the capture, and a capture gives nothing back.
    """
    peak = max(stage.total + stage.pool, stage.whole_run)
    found = ratios_of(spec, stage.total, settings)
    low, likely, high = (round(peak * share) for share in found.reserved)
    reserved = low, likely, round(high * found.late)
    if spec.cuda_graph.impl == "none":
        low, likely, high = (round(peak * share) for share in found.fits)
    return Held(reserved, (low, likely, high), "estimated")


def not_composed(spec: ExperimentSpec) -> str:
    """Name what of a job is not composed of requests for memory; empty where its steps are."""
    offloads = spec.offload.offload_modules or spec.offload.cpu_offloading_num_layers
    names = (
        "jobs on CPUs", "CUDA graphs", "FSDP", "offloading", "optimizer states in host memory", "Muon",
        "overlapped expert-parallel communication",
    )  # fmt: skip
    has = (
        spec.gpu_type.is_cpu, spec.cuda_graph.impl != "none", spec.ddp.use_megatron_fsdp, offloads,
        spec.optimizer.optimizer_cpu_offload, "muon" in spec.optimizer.optimizer,
    )  # fmt: skip
    return " and ".join(compress(names, (*has, schedule_of(spec, 0).extra_warmup)))


def not_known(option: str, spec: ExperimentSpec) -> BadRequestError:
    """Return the error of an option that needs the requests of a step."""
    cause, why = not_composed(spec), why_unknown(spec)
    instead = "with --cuda_graph_impl none" if cause == "CUDA graphs" else f"without {cause}"
    remedy = f"omit {option}" + f", or plan {instead}" * bool(cause)
    return BadRequestError(f"{option}: {why}", remedy=remedy)


def why_unknown(spec: ExperimentSpec) -> str:
    """Say why the requests of a step are not known."""
    why = not_composed(spec) or "none are recorded for its layers, or the allocator's settings refuse one"
    return f"the requests of this step are not known ({why})"


def replay(
    composer: Composer,
    stage: StageMemory,
    chunks: tuple[ChunkCost, ...],
    settings: AllocatorSettings,
    read: Read,
    draws: "Sequence[Draw]" = (),
) -> Held:
    """Replay the first steps of a stage's first rank; MissingEventsError where its requests are not known."""
    every = tuple(first_steps(composer, stage, chunks, read, draw) for draw in (None, *draws))
    ratios, known = ratios_of(composer.spec, stage.total, settings), composer.shared.steps
    name = (*map(id, (*every, ratios)), settings)
    if name not in known:
        known[name] = _held(every, settings, ratios, device_bytes(composer.spec))
    held: Held = known[name]
    return held


def _held(every: Sequence[Steps], settings: AllocatorSettings, ratios: Ratios, device: int) -> Held:
    """Replay whole micro-batches, which come first, and draws of others."""
    steps, *_ = every
    found = [sought(each.events, settings, device, each.cycles, each.peak_bytes) for each in every]
    if settings.memory_fraction is not None and any(fits is None for _, fits in found):
        settings = replace(settings, memory_fraction=None)  # the question is what the steps need
        found = [sought(each.events, settings, device, each.cycles, each.peak_bytes) for each in every]
    needed = [min(each.peak_reserved_bytes, fits or each.peak_reserved_bytes) for each, fits in found]
    (free, *drawn), (whole, *fits) = (each for each, _ in found), needed
    low, reserved, most = _ends(free.peak_reserved_bytes, [each.peak_reserved_bytes for each in drawn])
    cut = (1.0,) * 4 if free.is_exact and not steps.num_left else ratios.cut
    reach, (fewest, likely, greatest) = ratios.late_replayed * cut[1], _ends(whole, fits)
    return Held(
        (round(low * cut[0]), reserved, round(most * reach)),
        (round(fewest * cut[2]), likely, round(greatest * cut[3])),
        "replayed",
        _drawn(drawn, fits) if drawn else None,
        cache(lambda: round(behind_bytes(steps, settings, device, free) * reach)),
    )


def behind_bytes(steps: Steps, settings: AllocatorSettings, device: int, free: Outcome) -> int:
    """Return how many bytes more than ``free`` the steps reserve where DDP's stream is always behind."""
    late = steps.late()
    if late == steps.events:
        return 0
    return max(0, replayed(late, settings, total_bytes=device).peak_reserved_bytes - free.peak_reserved_bytes)


def _drawn(found: list[Outcome], fits: list[int]) -> Drawn:
    sizes = [(each.peak_allocated_bytes, each.peak_reserved_bytes) for each in found]
    peaks, reserved = ((min(each), max(each)) for each in zip(*sizes, strict=True))
    return Drawn(peaks, (min(fits), max(fits)), reserved)


def _ends(whole: int, drawn: list[int]) -> tuple[int, int, int]:
    """Return ends and likely value of what whole micro-batches take, and draws of others."""
    return min((whole, *drawn)), max(whole, round(median(drawn or [whole]))), max((whole, *drawn))


def first_steps(
    composer: Composer, stage: StageMemory, chunks: tuple[ChunkCost, ...], read: Read, draw: "Draw | None" = None
) -> Steps:
    """Compose the first steps of a stage's first rank, beside what the ledger has more than its requests."""
    if cause := not_composed(composer.spec):
        raise MissingEventsError(cause)
    seed = draw.seed if draw else None
    known: dict[object, Steps] = composer.shared.steps
    parts = tuple(chunk_parts(composer, chunk, read) for chunk in composer.stages[stage.pp_rank])
    name = (parts, stage.pp_rank, stage.total, seed)
    if name not in known:
        made = rank_steps(composer.spec, stage, chunks, parts, draw)
        constant = first_steps(composer, stage, chunks, read) if draw else None
        made = made._replace(peak_bytes=peak_of(made.events))
        known[name] = made.beside(constant.rest if constant else stage.total - made.peak_bytes)
    return known[name]


def device_bytes(spec: ExperimentSpec) -> int:
    """Return the memory of a GPU, which decides how long the ranges of expandable segments are."""
    return spec.gpu_type.memory_bytes or 80 * GIB
