"""The class of a run of ours that ran out of memory, by the words of the rank that did."""

from dataclasses import dataclass

from harness.analysis.oom.classify import Ending, classify
from harness.analysis.oom.verdict import OomVerdict
from harness.records.run import RunRecord

# torch reads both; where both are set the first counts.
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class RankOom:
    """The verdict on one rank's words; the lowest rank that ran out of memory, as in the failure of the record."""

    rank: int
    verdict: OomVerdict


def oom_of_run(record: RunRecord) -> RankOom | None:
    """None for a run that ended otherwise, and where no rank left a word."""
    ending = Ending(expandable_segments=expandable_segments(record))
    for rank in sorted(record.ranks, key=lambda rank: rank.rank):
        if rank.failure is not None and rank.failure.kind == "oom":
            return RankOom(rank.rank, classify(rank.failure.message, ending))
    return None


def expandable_segments(record: RunRecord) -> bool | None:
    """Whether torch's allocator was told to use them; None where the record does not hold its settings."""
    environment = record.provenance.environment
    told = next((environment[name] for name in _ALLOCATOR_SETTINGS if name in environment), None)
    return None if told is None else "expandable_segments:true" in told.replace(" ", "").lower()
