"""What the tracer is asked for whole schedules, and what it answers: the peak of a rank over all its micro-batches."""

from pydantic import Field

from harness.records.trace import SCHEMA_VERSION
from harness.spec.effective import Implementation
from harness.spec.experiment import ExperimentSpec
from harness.spec.frozen import Frozen
from harness.spec.model import Size


class ExactRequest(Frozen):
    """Input of ``python -m harness.engine.trace --exact``: a whole job, and the pipeline ranks to trace, in this order."""

    schema_version: int = SCHEMA_VERSION
    spec: ExperimentSpec
    implementation: Implementation
    pp_ranks: tuple[Size, ...]


class ExactStage(Frozen):
    """One rank of a pipeline stage through one step of megatron-core's own schedule.

    ``peak_bytes``: highest sum of all tensors but parameters, their quantised copies and gradient buffers.
    """

    pp_rank: int
    peak_bytes: int
    num_parameters: int
    seconds: float


class ExactFile(Frozen):
    """The answer, written anew after every rank. ``refused``: megatron-core's or the tracer's reason to decline."""

    schema_version: int = SCHEMA_VERSION
    stages: tuple[ExactStage, ...] = ()
    refused: str | None = Field(default=None)
