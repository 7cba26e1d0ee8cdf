"""Which report of a log stands for a memory value in Megatron-Bridge's golden."""

from harness.records.foreign.values import ForeignLog, RankMemory

OF_THE_FIRST_REPORT = ("allocated_bytes", "max_allocated_bytes")


def bridge_report(log: ForeignLog, counter: str, *, of_whole_run: bool = False) -> RankMemory | None:
    """The worst rank's report of ``counter``; None where no rank tells it.

    Bridge stores allocated bytes of a log's first report, whichever rank printed first: here all ranks of that iteration
    are looked at. Of reserved bytes it stores the largest of all, as goldens ``of_whole_run`` do of both.
    """
    told = [one for one in log.memory if getattr(one, counter) is not None]
    if counter in OF_THE_FIRST_REPORT and not of_whole_run:
        first = min((one.iteration for one in told), default=None)
        told = [one for one in told if one.iteration == first]
    return max(told, key=lambda one: (getattr(one, counter), -one.iteration, -one.rank), default=None)
