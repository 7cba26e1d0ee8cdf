"""JSON of a diagnosis."""

from typing import Literal, Self

from harness.diagnose.stages import needed_bytes, stage_of_failure, unexplained_bytes
from harness.diagnose.values import Case, Diagnosis, Recognised, Status
from harness.errors import ExitCode
from harness.failures.verdict import AllocatorFigures, Confidence
from harness.records.run import StagePrediction
from harness.show.json import Document, Shown, Text, at


class VerdictPart(Shown):
    """The kind of failure; ``class`` and ``confidence`` are null if it is unknown."""

    oom_class: str | None = at("oom_class", serialization_alias="class")
    confidence: Confidence | None
    reason: str
    is_oom: bool = at("case", "has_oom")
    rank: int | None = at("case", "failed", "rank")
    place: Text = at("case", "failed", "place")
    when: Text = at("case", "failed", "when")
    where: str | None = at("case", "failed", "where")
    message: str | None = at("case", "failed", "message")
    request_bytes: int | None = at("case", "verdict", "request_bytes")
    figures: AllocatorFigures | None = at("case", "verdict", "figures")


class FixRow(Shown):
    """The next step, the command to paste, and what it changes as overrides of Megatron-Bridge and arguments of Megatron-LM."""

    text: str
    command: Text
    bridge: str | None = at("setting", "bridge")
    megatron_lm: str | None = at("setting", "megatron_lm")
    without: tuple[str, ...] | None = at("setting", "without")


class JobPart(Shown):
    """The job, as far as it is known."""

    name: str
    origin: Literal["run", "log", "snapshot"]
    status: Status
    recompute: str | None = at("spec", "recompute", "text")
    expandable_segments: bool | None
    tflops_per_gpu: float | None
    step_time_s: float | None
    peak_allocated_bytes: int | None = at("peak_bytes")
    notes: tuple[str, ...]


class ExpectedPart(Shown):
    """The prediction for the pipeline stage that failed, or why there is none."""

    stage: StagePrediction | None
    needed_bytes: int | None
    unexplained_bytes: int | None
    problem: Text

    @classmethod
    def of_case(cls, case: Case) -> Self:
        """Return the part; all keys are null without a prediction."""
        stage = stage_of_failure(case)
        return cls.of(
            stage=stage, needed_bytes=needed_bytes(case), unexplained_bytes=unexplained_bytes(case),
            problem="" if stage else case.no_prediction,
        )  # fmt: skip


class DiagnosisDocument(Document):
    """``mbr-perf diagnose --json``. Sizes are bytes."""

    verdict: VerdictPart
    evidence: tuple[str, ...]
    symptoms: tuple[Recognised, ...]
    fixes: tuple[FixRow, ...]
    job: JobPart = at("case")
    expected: ExpectedPart
    exit_code: int

    @classmethod
    def of_answer(cls, answer: Diagnosis, exit_code: ExitCode) -> Self:
        """Return everything that the text shows."""
        certain = {} if answer.is_conclusive else {"oom_class": None, "confidence": None}
        verdict, expected = VerdictPart.of(answer, **certain), ExpectedPart.of_case(answer.case)
        return cls.of(answer, verdict=verdict, expected=expected, exit_code=exit_code)
