"""The values of a diagnosis: verdict, evidence, fixes, refusals."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, InstanceOf, PlainSerializer, computed_field

from harness.errors import ExitCode
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.rules.rule import Finding
from harness.failures.verdict import AllocatorFigures, Confidence, OomVerdict
from harness.foreign.exporting import ToPaste
from harness.records.prediction import PredictionRecord, Source, StagePrediction
from harness.show.json import Document, Shown, Text, at

Origin = Literal["run", "log"]
Status = Literal["ok", "oom", "failed", "interrupted", "unknown"]


@dataclass(frozen=True, slots=True)
class RankFigures:
    """Peaks of one rank in bytes; None if not recorded."""

    rank: int
    pp_rank: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FailedRank:
    """The rank that failed first. ``place``: its GPU or task and its node. ``moment``: of failures.yaml."""

    rank: int | None
    kind: str
    message: str
    when: str = ""
    where: str = ""
    place: str = ""
    moment: str | None = None


JOB_OPTIONS = ("-mr", "RECIPE", "-g", "GPU", "-c", "DTYPE", "-ng", "GPUS", "--recompute", "SETTING")
NO_PREDICTION = "No prediction: "  # begins the evidence that says why, which the page shows beside the figures


def is_dense(spec: ExperimentSpec | None) -> bool:
    """Return whether the job is known to have no experts."""
    return spec is not None and not spec.model.moe


@dataclass(frozen=True)
class Case:
    """One job. ``said``: the texts of its failures. ``asks``: the options that a prediction lacks.

    ``has_given_settings``: the user's, not of its own record. ``pools_in_log``: exclude expandable segments.
    """

    name: str
    origin: Origin
    status: Status
    verdict: OomVerdict
    failed: FailedRank | None = None
    spec: ExperimentSpec | None = None
    ranks: tuple[RankFigures, ...] = ()
    prediction: PredictionRecord | None = None
    no_prediction: str = ""
    tflops_per_gpu: float | None = None
    step_time_s: float | None = None
    has_nan: bool = False
    expandable_segments: bool | None = None
    said: str = ""
    sources: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    asks: tuple[str, ...] = JOB_OPTIONS
    has_given_settings: bool = False
    forced: tuple[str, ...] = ()
    pools_in_log: str = ""
    why_now: str = ""
    num_iterations: int = 0

    @property
    def on_device(self) -> bool:
        return self.verdict.oom_class in ("fragmentation", "capacity", "cuda_graph_pools", "outside_allocator")

    @property
    def fills_device(self) -> bool:
        """Return whether this job alone filled the device in training, or the limit that stands for a smaller one."""
        is_stand_in = self.spec is not None and self.spec.measure.memory_limit_bytes is not None
        is_full = self.on_device or (self.verdict.oom_class == "self_imposed_limit" and is_stand_in)
        return is_full and self.verdict.recompute_helps

    @property
    def pools(self) -> str:
        return self.pools_in_log or ("nccl_ub" if self.spec and self.spec.ddp.nccl_ub else "")

    @property
    def is_captured(self) -> bool:
        return self.failed is not None and self.failed.moment == "capture"

    @property
    def is_on_cpu(self) -> bool:
        return self.spec is not None and self.spec.gpu_type.is_cpu

    @property
    def has_oom(self) -> bool:
        return self.verdict.is_oom

    @property
    def capacity_bytes(self) -> int | None:
        stated = self.verdict.figures.total_bytes if self.verdict.figures else None
        sizes = (stated, self.spec.capacity_bytes if self.spec else None)
        return min((size for size in sizes if size), default=None)

    @property
    def peak_bytes(self) -> int | None:
        return max((rank.allocated_bytes for rank in self.ranks if rank.allocated_bytes is not None), default=None)


@dataclass(frozen=True, slots=True)
class Recognised:
    """A refusal of megatron-core that the job's messages show, by its rule, with the ``evidence``."""

    id: str
    cause: str
    fix: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is predicted to fit. ``settings``: by path of the spec. ``overhead``: of ``cost``, if known."""

    recompute: str
    peak_bytes: int
    overhead: float | None
    cost: str = "step time"
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def sizes(self) -> list[str]:
        return [f"{_SIZES[path]} {value}" for path, value in self.settings.items() if path in _SIZES]

    def text(self, own: str) -> str:
        """Return such as ``micro-batch 1 and recompute mlp without CUDA graphs``; ``own``: the job's recompute."""
        recompute = [] if self.sizes and self.recompute == own else [f"recompute {self.recompute}"]
        without = " without CUDA graphs" * ("cuda_graph.impl" in self.settings)
        return " and ".join((*self.sizes, *recompute)) + without


_SIZES = {
    "batch.micro_batch_size": "micro-batch", "parallelism.pipeline_model_parallel_size": "PP",
    "parallelism.tensor_model_parallel_size": "TP",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outlook:
    """``changes``: predicted to fit, the cheapest first. ``problem``: why nothing was planned."""

    changes: tuple[Change, ...] = ()
    fits_already: bool = False
    budget_bytes: int | None = None
    capacity_bytes: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """The next step. ``command``: to paste, or empty. ``setting``: the same change for other programs."""

    text: str
    command: Annotated[str, PlainSerializer(lambda text: text or None, return_type=str | None)] = ""
    setting: Annotated[ToPaste | None, Field(exclude=True)] = None

    @computed_field
    @property
    def bridge(self) -> str | None:
        return self.setting.bridge if self.setting else None

    @computed_field
    @property
    def megatron_lm(self) -> str | None:
        return self.setting.megatron_lm if self.setting else None

    @computed_field
    @property
    def without(self) -> tuple[str, ...] | None:
        return self.setting.without if self.setting else None


class Verdict(Shown):
    """The kind of failure; ``oom_class`` and ``confidence`` are None if it is unknown."""

    oom_class: str | None = at("oom_class", serialization_alias="class")
    confidence: Confidence | None
    reason: str
    is_oom: bool = at("has_oom")
    rank: int | None = at("failed", "rank")
    place: Text = at("failed", "place")
    when: Text = at("failed", "when")
    where: str | None = at("failed", "where")
    message: str | None = at("failed", "message")
    request_bytes: int | None = at("verdict", "request_bytes")
    figures: AllocatorFigures | None = at("verdict", "figures")


class Job(Shown):
    """The job, as far as it is known."""

    name: str
    origin: Origin
    status: Status
    recompute: str | None = at("spec", "recompute", "text")
    expandable_segments: bool | None
    tflops_per_gpu: float | None
    step_time_s: float | None
    peak_allocated_bytes: int | None = at("peak_bytes")
    notes: tuple[str, ...]


class Expected(Shown):
    """The prediction for the pipeline stage that failed, or why there is none."""

    stage: StagePrediction | None = None
    needed_bytes: int | None = None
    unexplained_bytes: int | None = None
    problem: Text = None


Remedy = Literal["expandable_segments", "max_split_size_mb", "less_memory"]


class Trial(Shown):
    """What the job's first steps take under some settings of the allocator; ``helps``: they would have fitted."""

    settings: str
    reserved_bytes: int
    fits_bytes: int
    helps: bool


class AllocatorAnswer(Shown):
    """What the allocator could do for the request that failed. ``available``: the most that it could have had.

    ``needed``: tensors and the request. ``stranded``: what a retry could not give back. ``given_back``: what it could,
    None if unknown. ``missing``: beyond the device under the best of the ``trials``, the first of which has the job's
    own settings. ``excluded``: by whose pools.
    """

    available_bytes: int
    needed_bytes: int
    stranded_bytes: int
    given_back_bytes: int | None
    missing_bytes: int
    remedy: Remedy
    settings: Text
    confidence: Confidence
    source: Source | Literal["message"]
    excluded: Text
    trials: tuple[Trial, ...]
    reason: str


class Diagnosis(Document):
    """``mbr-perf diagnose --json``. ``evidence`` and ``fixes``: the most important first. Sizes are bytes."""

    case: InstanceOf[Case] = Field(exclude=True)
    verdict: Verdict
    evidence: tuple[str, ...]
    symptoms: tuple[Recognised, ...]
    fixes: tuple[Fix, ...]
    job: Job
    expected: Expected
    allocator: AllocatorAnswer | None = None
    is_interrupted: bool = Field(False, exclude=True)

    @property
    def is_conclusive(self) -> bool:
        return self.verdict.oom_class is not None

    @computed_field
    @property
    def exit_code(self) -> int:
        if self.is_interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.OK if self.is_conclusive else ExitCode.INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Rulings:
    """``job``: the rules that refuse the job's own settings. ``start``: returns the rules that refuse a start here."""

    job: tuple[Finding, ...] = ()
    start: Callable[[ExperimentSpec], tuple[Finding, ...]] = lambda _: ()

    def refusal(self, spec: ExperimentSpec) -> str:
        """Return why the job cannot start like this: rule, message and fix; empty if it can."""
        return findings_text({finding.id: finding for finding in self.start(spec)}.values())


NO_RULINGS = Rulings()


def findings_text(findings: Iterable[Finding]) -> str:
    """Return the rules with their messages and fixes, in one line."""
    return "; ".join(f"{finding.id}: {finding.message} (fix: {finding.fix})" for finding in findings)


def is_doubted(case: Case, rulings: Rulings) -> bool:
    """Return whether the rules refuse settings that the user gave for a job that trained."""
    has_trained = case.has_oom or case.step_time_s is not None or case.status == "ok"
    return case.has_given_settings and has_trained and bool(rulings.job)
