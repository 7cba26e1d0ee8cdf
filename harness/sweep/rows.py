"""The table of a sweep as text, one row per cell: terminal, Markdown and HTML show the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.judging.statistics import TimeChange
from harness.showing.figures import ABSENT, BY_NAME, cap_figure, clock_figure, figure
from harness.sweep.values import CellVerdict, SweepVerdict
from harness.units import format_bytes, format_percent, four_figures

RECOMMENDED, PARETO = "*", "P"
STEP, VERSUS = "Step", "Time vs control"


@dataclass(frozen=True)
class Rows:
    """Titles, which of them are aligned to the right, and the texts of every cell in the plan's order."""

    titles: tuple[str, ...]
    right: tuple[bool, ...]
    texts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Column:
    title: str
    read: Callable[[CellVerdict], str]
    right: bool = True


def rows(verdict: SweepVerdict, *, narrow: bool = False) -> Rows:
    """All columns that any cell has something to say in; ``narrow`` leaves out what fits on no small screen."""
    columns = [_marks(verdict), *_FIXED, *(() if narrow else _WIDE_ONLY)]
    filled = [column for column in columns if any(column.read(cell) not in ("", ABSENT) for cell in verdict.cells)]
    return Rows(
        tuple(_title(column, verdict) for column in filled),
        tuple(column.right for column in filled),
        tuple(tuple(column.read(cell) for column in filled) for cell in verdict.cells),
    )


def _title(column: _Column, verdict: SweepVerdict) -> str:
    """Over repeats the step time says that it is a mean; the line below the table says of what and against what."""
    if column.title == VERSUS and verdict.reference_why:
        return "Time vs reference"
    return f"Mean {column.title.lower()}" if column.title == STEP and verdict.has_repeats else column.title


def status_text(cell: CellVerdict) -> str:
    """The status in words; a cell that does not leave the margin says so."""
    if cell.status == "ok":
        return "ok, in doubt" if cell.doubts else "ok, no margin" if cell.fits is False else "ok"
    return cell.status.replace("_", " ").replace("oom", "OOM")


def change_text(change: TimeChange | None) -> str:
    """``+3.1 % (+2.0 % to +4.2 %)``; the interval is that of 95 %."""
    if change is None:
        return ABSENT
    if change.interval is None:
        return format_percent(change.fraction)
    low, high = change.interval
    return f"{format_percent(change.fraction)} ({format_percent(low)} to {format_percent(high)})"


def signed_bytes(value: int) -> str:
    """Bytes with their sign: ``+1.50 GiB``."""
    return f"{'-' if value < 0 else '+'}{format_bytes(abs(value))}"


def trade_text(cell: CellVerdict) -> str:
    """Milliseconds per GiB saved with one digit more than the noise deserves; absent where undefined."""
    trade = cell.versus.trade if cell.versus else None
    return ABSENT if trade is None or trade.ms_per_gib_saved is None else four_figures(trade.ms_per_gib_saved)


def cell_number(cell: CellVerdict) -> str:
    """What pictures call a cell whose name finds no room."""
    return f"{cell.index}"


def _marks(verdict: SweepVerdict) -> _Column:
    def read(cell: CellVerdict) -> str:
        best = RECOMMENDED if cell.name == verdict.recommendation.cell else ""
        return best + (PARETO if cell.name in verdict.pareto else "")

    return _Column("", read, right=False)


def _name(cell: CellVerdict) -> str:
    return f"{cell.name}{_role(cell)}"


def _role(cell: CellVerdict) -> str:
    return " (control)" if cell.is_control else " (reference)" if cell.is_reference else ""


def _metric(name: str) -> Callable[[CellVerdict], str]:
    return lambda cell: figure(BY_NAME[name], cell.figure(BY_NAME[name])) if cell.metrics else ABSENT


def _allocated(cell: CellVerdict) -> str:
    """Of a cell without any good run what it had when memory ran out, marked."""
    so_far = cell.oom.peak_allocated_bytes if cell.oom and not cell.metrics else None
    return _metric("peak_allocated_bytes")(cell) if so_far is None else f"{format_bytes(so_far)} (OOM)"


def _time(cell: CellVerdict) -> str:
    return change_text(cell.versus.time if cell.versus else None)


def _saved(cell: CellVerdict) -> str:
    memory = cell.versus.memory if cell.versus else None
    return signed_bytes(memory.saved_bytes) if memory else ABSENT


def _worst(cell: CellVerdict) -> str:
    peak = cell.metrics.peak_allocated_bytes if cell.metrics else None
    return f"{peak.rank}" if peak else ABSENT


def _sm_clock(cell: CellVerdict) -> str:
    return clock_figure(cell.metrics.clocks.sm_clock_mhz if cell.metrics and cell.metrics.clocks else None)


def _power_cap(cell: CellVerdict) -> str:
    return cap_figure(cell.metrics.clocks.power_cap_share if cell.metrics and cell.metrics.clocks else None)


def _predicted(cell: CellVerdict) -> str:
    return format_bytes(cell.foretold.prediction.peak_bytes) if cell.foretold else ABSENT


def _error(cell: CellVerdict) -> str:
    error = cell.foretold.peak_error if cell.foretold else None
    return ABSENT if error is None else format_percent(error)


_FIXED: Sequence[_Column] = (
    _Column("#", cell_number),
    _Column("Cell", _name, right=False),
    _Column("Status", status_text, right=False),
    _Column(STEP, _metric("step_time_s")),
    _Column(VERSUS, _time),
    _Column("Allocated", _allocated),
    _Column("Rank", _worst),
    _Column("Saved", _saved),
    _Column("ms per GiB saved", trade_text),
)
_WIDE_ONLY: Sequence[_Column] = (
    _Column("Reserved", _metric("peak_reserved_bytes")),
    _Column("Device used", _metric("peak_device_bytes")),
    _Column("TFLOP/s/GPU", _metric("tflops_per_gpu")),
    _Column("SM clock", _sm_clock),
    _Column("Power cap", _power_cap),
    _Column("Predicted", _predicted),
    _Column("Pred. error", _error),
)
