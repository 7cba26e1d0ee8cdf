"""One row per rank: where it sat, what it held, how fast it was, how it ended."""

from rich.table import Table
from rich.text import Text

from harness.analysis import peaks, statistics
from harness.analysis.victims import is_victim
from harness.analysis.window import window_of
from harness.records.rank import RankRecord
from harness.records.run import RunRecord
from harness.report.figures import ABSENT, cap_figure, clock_figure
from harness.report.printing import plain_table
from harness.units import format_bytes, format_seconds

MAX_ROWS = 16
CLOCKS = ("SM clock", "Power cap")


def rank_table(record: RunRecord) -> tuple[Table, str]:
    """The table, and a sentence on what it leaves out: above ``MAX_ROWS`` ranks the fullest of each stage and the failed."""
    device_used = peaks.device_used(record.nodes)
    with_clocks = any(rank.clocks for rank in record.ranks)
    figures = ("Rank", "Stage", "Allocated", "Reserved", "Device used", "Step", *(CLOCKS if with_clocks else ()))
    table = plain_table(*figures, "State", right=figures)
    shown = _shown(record.ranks)
    for rank in shown:
        table.add_row(
            str(rank.rank),
            str(rank.coordinates.pp),
            *(_bytes(read(rank)) for read in (peaks.allocated, peaks.reserved, device_used)),
            _step(rank, record),
            *(_clocks(rank) if with_clocks else ()),
            _state(rank, record),
        )
    if len(shown) == len(record.ranks):
        return table, ""
    return table, f"{len(record.ranks)} ranks: the fullest of each stage and those that failed; all are in record.json."


def _shown(ranks: tuple[RankRecord, ...]) -> list[RankRecord]:
    if len(ranks) <= MAX_ROWS:
        return list(ranks)
    fullest: dict[int, RankRecord] = {}
    for rank in ranks:
        best = fullest.get(rank.coordinates.pp)
        if best is None or (peaks.allocated(rank) or 0) > (peaks.allocated(best) or 0):
            fullest[rank.coordinates.pp] = rank
    failed = {rank.rank for rank in ranks if rank.failure}
    chosen = {rank.rank for rank in fullest.values()} | failed
    return [rank for rank in ranks if rank.rank in chosen][: max(MAX_ROWS, len(fullest))]


def _bytes(value: int | None) -> str:
    return ABSENT if value is None else format_bytes(value)


def _step(rank: RankRecord, record: RunRecord) -> str:
    """The rank's own median over the window; below the job's, which waits for the slowest rank each step."""
    seconds = window_of([rank], 1, *record.spec.measure.window).seconds
    return format_seconds(statistics.median(seconds)) if seconds else ABSENT


def _clocks(rank: RankRecord) -> tuple[str, str]:
    """The median SM clock of the rank's GPU and its time under the power cap."""
    own = rank.clocks
    return clock_figure(own.sm_clock_mhz if own else None), cap_figure(own.power_cap_share if own else None)


def _state(rank: RankRecord, record: RunRecord) -> Text:
    if rank.failure is None:
        return Text("ok") if rank.finished else Text("unfinished", style="yellow")
    full = [other.rank for other in record.ranks if other.failure and other.failure.kind == "oom"]
    if full and is_victim(rank.failure):
        return Text(f"ended because rank {full[0]} was out of memory", style="yellow")
    return Text(f"{rank.failure.kind} {rank.failure.when}".rstrip(), style="red")
