"""Where in the parallel grid a rank sits that could not say so itself."""

from harness.records.rank import Coordinates, RankRecord
from harness.spec.experiment import ExperimentSpec


def placed(ranks: tuple[RankRecord, ...], spec: ExperimentSpec) -> tuple[RankRecord, ...]:
    """Ranks that ended before they joined megatron's groups, or left heartbeats only, at the place the layout gives."""
    return tuple(
        rank
        if rank.coordinates != Coordinates()
        else rank.model_copy(update={"coordinates": coordinates(rank.rank, spec)})
        for rank in ranks
    )


def coordinates(rank: int, spec: ExperimentSpec) -> Coordinates:
    """The place of a global rank: megatron-core's default order tp-cp-ep-dp-pp, TP fastest (`RankGenerator`)."""
    p = spec.parallelism
    tp, cp, dp = p.tensor_model_parallel_size, p.context_parallel_size, spec.data_parallel_size
    return Coordinates(
        tp=rank % tp,
        cp=rank // tp % cp,
        dp=rank // (tp * cp) % dp,
        pp=rank // (tp * cp * dp),
        ep=rank // p.expert_tensor_size % p.expert_model_parallel_size,
    )
