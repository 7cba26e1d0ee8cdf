"""The prediction of one setting with the planner's constants, and its peaks beside those of whole traced steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.experiment.effective import NO_SOFTWARE, Implementation, effective_recompute
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.flops import achieved_tflops, model_flops_per_step, recompute_flops_per_step, utilization
from harness.experiment.optimizer_states import host_state_bytes
from harness.experiment.software import Software
from harness.predict.allocator_settings import asked_settings
from harness.predict.assumptions import Assumption, assumptions, band
from harness.predict.compose import ChunkCost
from harness.predict.device import OUTSIDE_ALLOCATOR_BYTES
from harness.predict.experts import at_pace
from harness.predict.ledger import StageMemory, stage_memory
from harness.predict.model_states import Adam, adam_of
from harness.predict.ranges import ENOUGH_ROWS, ClassName, spread_of, spreads
from harness.predict.reserved import Drawn, Held, estimated
from harness.predict.stages import Composer
from harness.predict.time_model import Efficiency, StepTime, step_time, typical
from harness.records.calibration import PROBED, FittedConstant
from harness.records.prediction import PredictionRecord, Source, StagePrediction
from harness.records.trace import ChunkTrace
from harness.units import GIB, MIB, counted

EFFICIENCIES = ("gemm_bf16", "gemm_low_precision", "attention", "memory", "link")
HOST_SECONDS = ("launch_s", "call_s", "step_s")

# Between which values a calibration may move a constant. Beyond them it is not the constant that is wrong: kernels
# reach neither a tenth nor all of a data sheet's peak, and memory that a rank takes beside its model is a few GiB at
# most.
BOUNDS: dict[str, tuple[float, float]] = {
    "allocator_bytes": (-256 * MIB, 4 * GIB),
    "outside_allocator_bytes": (0, 8 * GIB),
    **dict.fromkeys(EFFICIENCIES, (0.1, 0.98)),
    **dict.fromkeys(HOST_SECONDS, (1e-6, 0.1)),
}


@dataclass(frozen=True)
class Constants:
    """Constants of the planner. ``speeds``: efficiencies that replace those built in for the GPU.

    ``allocator_bytes``: in torch's allocator beside everything modelled. ``time_spread``: by which share a step may
    take more or less; None: by residuals of measured steps. ``origin``: what they were calibrated on.
    """

    allocator_bytes: int = 0
    outside_allocator_bytes: int = OUTSIDE_ALLOCATOR_BYTES
    speeds: Mapping[str, float] = field(default_factory=dict)
    time_spread: float | None = None
    origin: str = ""
    made_by: Literal["probe", "runs"] = "runs"

    @property
    def told(self) -> tuple[str, Literal["probe", "runs"]]:
        return self.origin, self.made_by

    def efficiency(self, gpu: str) -> Efficiency:
        """Return the efficiencies of a GPU type."""
        return replace(typical(gpu), **self.speeds)

    def added_to(self, stage: StageMemory) -> StageMemory:
        """Return the ledger of a stage with the bytes that the allocator holds beside it."""
        more = self.allocator_bytes
        if not more:
            return stage
        peaks = {name: peak + more for name, peak in stage.peaks.items()}
        passes = {name: peak + more for name, peak in stage.passes.items()}
        return replace(stage, overhead=stage.overhead + more, total=stage.total + more, peaks=peaks, passes=passes)


BUILT_IN = Constants()


def calibrated(fitted: Iterable[FittedConstant], time_spread: float | None = None, origin: str = "") -> Constants:
    """Return the built-in constants, replaced by those of ``fitted`` that were determined."""
    known = [constant for constant in fitted if constant.value is not None]
    found = {constant.name: constant.value for constant in known if constant.value is not None}
    made_by: Literal["probe", "runs"] = "probe" if all(each.reason == PROBED for each in known) else "runs"
    speeds = {name: value for name, value in found.items() if not name.endswith("_bytes")}
    sizes = {name: round(value) for name, value in found.items() if name.endswith("_bytes")}
    spread = time_spread if speeds else None
    return Constants(**sizes, speeds=speeds, time_spread=spread, origin=origin, made_by=made_by)


Verdict = Literal["FITS", "TIGHT", "OOM"]


def reserved_of(held: Held) -> tuple[int, int, int]:
    """Return the lower end, likely value and upper end of what a stage reserves; replays streams that are behind."""
    low, likely, high = held.in_time
    return low, likely, high + held.behind()


@dataclass(frozen=True)
class Prediction:
    """All bytes are of the worst rank of a stage; ``range_bytes`` holds nine of ten peaks of its class.

    ``held``: what the allocator takes, by stage. ``uneven_bytes``: the peak with uneven routing. ``num_rows``: measured
    cases of the class. ``time`` is None on a CPU. ``recompute_flops`` is per step over all GPUs.
    """

    spec: ExperimentSpec
    stages: tuple[StageMemory, ...]
    range_bytes: tuple[int, int]
    uneven_bytes: int
    job_class: ClassName
    num_rows: int
    time: StepTime | None
    model_flops: int
    recompute_flops: int
    assumptions: tuple[Assumption, ...]
    held: tuple[Held, ...]
    adam: Adam = "fused"
    draws_routing: bool = False

    @property
    def reserved(self) -> tuple[int, int, int]:
        """Return the lower end, likely value and upper end of what torch's allocator takes from the fullest device."""
        return self._ends([reserved_of(held) for held in self.held])

    @property
    def reserved_bytes(self) -> int:
        """Return the likely value of :attr:`reserved`, which takes no replay of streams that are behind."""
        return max(held.in_time[1] for held in self.held)

    @property
    def fits(self) -> tuple[int, int, int]:
        """Return the same of the smallest device, less what is outside torch's allocator, on which nothing fails."""
        return self._ends([held.fits for held in self.held])

    def _ends(self, of_stages: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
        lows, likely, highs = zip(*of_stages, strict=True)
        below, above = (end - self.peak_bytes for end in self.range_bytes)
        if self.draws_routing:  # the range of the peak assumes a load
            _, spread = spread_of(self.spec, self.peak_bytes)
            ends = (spread.around(self.peak_bytes, most)[1] for most in (self.uneven_bytes, self.peak_bytes))
            above -= max(0, next(ends) - next(ends))
        return max(0, max(lows) + below), max(likely), max(highs) + above

    @property
    def reserved_source(self) -> Source:
        return max(self.held, key=lambda held: held.fits[1]).source

    @property
    def drawn(self) -> Drawn | None:
        """Return what sizes that vary took on the stage that needs the largest device; None where none vary."""
        known = [held.drawn for held in self.held if held.drawn]
        return max(known, key=lambda drawn: drawn.fits_bytes[1], default=None)

    @property
    def worst(self) -> StageMemory:
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def fullest(self) -> StageMemory:
        """Return the stage that needs the largest device, which under CUDA graphs may have a lower peak."""
        needs = (held.fits[1] for held in self.held)
        return max(zip(self.stages, needs, strict=True), key=lambda each: (each[1], each[0].total))[0]

    @property
    def peak_bytes(self) -> int:
        return self.worst.total

    @property
    def host_bytes(self) -> int:
        """Return the most bytes of optimizer states in host memory on a node."""
        sizes = (stage.parameters for stage in self.stages)
        return max(host_state_bytes(self.spec, each.dense, each.expert) for each in sizes)

    @property
    def needs_more(self) -> bool:
        """Return whether torch's allocator needs visibly more than the peak, as the pools of CUDA graphs make it."""
        return self.fits[1] > 1.05 * self.peak_bytes

    @property
    def tflops_per_gpu(self) -> float | None:
        """Return the model TFLOP/s of each GPU at the likely step time; None without a step time."""
        return achieved_tflops(self.model_flops, self.time.likely_s, self.spec.num_gpus) if self.time else None

    @property
    def mfu(self) -> float | None:
        """The model FLOP/s as a share of the GPU's peak at the likely step time; None where either is unknown."""
        return self._utilization(self.model_flops)

    @property
    def hfu(self) -> float | None:
        """Return ``mfu`` with the FLOPs that recompute executes again included."""
        return self._utilization(self.model_flops + self.recompute_flops)

    def _utilization(self, num_flops: int) -> float | None:
        peak = self.spec.gpu_type.peak_flops.get(self.spec.precision.peak)
        if peak is None or self.time is None:
            return None
        return utilization(num_flops, self.time.likely_s, self.spec.num_gpus, peak)

    @property
    def is_point_known(self) -> bool:
        """Return whether the model covers everything; if not, trust the range and not the peak."""
        is_guessed = self.num_rows < ENOUGH_ROWS or any(row.lower or row.higher for row in self.assumptions)
        return not (self.spec.is_routed_naturally or is_guessed)

    @property
    def range_basis(self) -> str:
        """Say what the range is made of."""
        wider = "" if self.num_rows >= ENOUGH_ROWS else ", and of the nearest class, widened"
        return f"Range: 9 of 10 of {counted(self.num_rows, 'measured peak')} of the class {self.job_class}{wider}"

    def num_of_ten_within(self, budget_bytes: int) -> int:
        """In how many of ten jobs of its class the need keeps a budget between the predicted need and its upper end."""
        _, likely, most = self.fits
        room, reach = budget_bytes - likely, most - likely
        return spreads()[self.job_class].num_of_ten(room / reach if reach else 1.0)

    def overhead_over(self, control: "Prediction") -> float:
        """Return the share by which a step is slower than the control's; from FLOPs if no seconds are predicted."""
        if self.time and control.time:
            return self.time.likely_s / control.time.likely_s - 1
        return (self.model_flops + self.recompute_flops) / (control.model_flops + control.recompute_flops) - 1

    def record(self) -> PredictionRecord:
        """Return the part that a run or a sweep records."""
        time = self.time
        return PredictionRecord(
            peak_bytes=self.peak_bytes,
            range_bytes=self.range_bytes,
            stages=tuple(StagePrediction.model_validate(stage, from_attributes=True) for stage in self.stages),
            model_flops=self.model_flops,
            recompute_flops=self.recompute_flops,
            reserved_bytes=self.reserved_bytes,
            reserved_range_bytes=self.reserved[::2],
            fits_bytes=self.fits[1],
            fits_range_bytes=self.fits[::2],
            reserved_source=self.reserved_source,
            step_time_s=time.likely_s if time else None,
            step_time_range_s=time.range_s if time else None,
            assumptions=tuple(row.text for row in self.assumptions),
        )


def predict(
    spec: ExperimentSpec,
    implementation: Implementation,
    traces: Mapping[str, ChunkTrace],
    imbalanced: Mapping[str, ChunkTrace] | None = None,
    software: Software | None = None,
    constants: Constants = BUILT_IN,
    composer: Composer | None = None,
) -> Prediction:
    """Compose ``traces``, and ``imbalanced`` ones with uneven routing. MissingTraceError, LayoutError."""
    known = software or NO_SOFTWARE
    composer = replace(composer or Composer(spec, implementation), software=known)
    costs = composer.chunk_costs(traces)
    adam = adam_of(spec, software)
    stages = _stages(spec, costs, constants, adam=adam)
    rows = assumptions(spec, implementation, adam=adam, apex=known.apex)
    if constants.origin:
        rows = (*rows, Assumption(constants.origin, applies=lambda _spec, _implementation: True))
    peak = max(stage.total for stage in stages)
    uneven, busiest = peak, costs
    if imbalanced:
        most = composer.chunk_costs(imbalanced)
        unevenly = _stages(spec, most, constants, adam=adam)
        uneven = max(peak, *(stage.total for stage in unevenly))
        busiest = at_pace(spec, costs, most)
    job_class, found = spread_of(spec, peak)
    low, high = found.around(peak, uneven)
    lower, higher = band(rows)
    effective = effective_recompute(spec, implementation, known)
    return Prediction(
        spec=spec,
        stages=stages,
        range_bytes=(max(0, round(low - lower * peak)), round(high + higher * peak)),
        uneven_bytes=uneven,
        job_class=job_class,
        num_rows=found.num_rows,
        time=None
        if spec.gpu_type.is_cpu
        else step_time(spec, busiest, constants.efficiency(spec.gpu), constants.time_spread, adam, *constants.told),
        model_flops=model_flops_per_step(spec),
        recompute_flops=recompute_flops_per_step(spec, effective),
        assumptions=rows,
        adam=adam,
        held=_held(spec, stages),
    )


def _held(spec: ExperimentSpec, stages: tuple[StageMemory, ...]) -> tuple[Held, ...]:
    if spec.gpu_type.is_cpu:
        return tuple(Held(*(3 * (stage.total,),) * 2, "estimated") for stage in stages)
    settings, _ = asked_settings(spec)
    return tuple(estimated(spec, stage, settings) for stage in stages)


def _stages(
    spec: ExperimentSpec, costs: tuple[tuple[ChunkCost, ...], ...], constants: Constants, *, adam: Adam
) -> tuple[StageMemory, ...]:
    stages = (stage_memory(spec, pp_rank, chunks, adam=adam) for pp_rank, chunks in enumerate(costs))
    return tuple(map(constants.added_to, stages))


def verdict(ends: tuple[int, int, int], budget_bytes: int) -> Verdict:
    """Return FITS if the upper end of the need keeps the budget, TIGHT if only the likely value does, else OOM."""
    _, likely, most = ends
    if most <= budget_bytes:
        return "FITS"
    return "TIGHT" if likely <= budget_bytes else "OOM"
