"""Shows the progress of a run, of many runs and of a log that is read."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from harness.show.page import AMOUNT, on_one_line
from harness.show.terminal import Console
from harness.units import format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from harness.foreign.logs.sources import Passage

_Item = TypeVar("_Item")
_MANY = 50

_PHASES = {"start": "starting", "import": "importing torch", "init_process_group": "connecting ranks",
           "step": "training", "probe": "measuring memory", "finish": "writing results"}  # fmt: skip
Show = Callable[[str, int | None, float | None, float | None], None]


@contextmanager
def step_progress(console: Console, num_steps: int) -> Iterator[Show]:
    """Yield ``show(phase, finished step or None, its seconds, seconds left)``: a bar on a terminal."""
    with _bars(console) as bar:
        yield _shown(bar, bar.add_task("starting", total=num_steps, eta=""))


@contextmanager
def _bars(console: Console) -> Iterator["Bar"]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[eta]}"),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar if console.is_terminal else nullcontext():
        yield bar


def _shown(bar: "Bar", task: "TaskID", before: str = "") -> Show:
    def show(phase: str, step: int | None, _last_step_s: float | None, eta_s: float | None) -> None:
        eta = f"{format_seconds(eta_s)} left" if eta_s else ""
        bar.update(
            task,
            description=f"{before}{_PHASES.get(phase, phase.replace('_', ' '))}",
            completed=0 if step is None else step + 1,
            eta=eta,
        )

    return show


Counting = Callable[..., None]
"""Is called with the number done, the number to do, and perhaps a text on what is known so far."""


@contextmanager
def counting(console: Console, title: str) -> Iterator[Counting]:
    """Show a bar on a terminal, from the first call on; nothing elsewhere."""
    if not console.is_terminal:
        yield lambda *_, **__: None
        return
    with _bars(console) as bar:
        task = bar.add_task(title, total=None, visible=False, eta="")
        yield lambda done, of, text="": bar.update(task, completed=done, total=of, visible=True, eta=text)


def counted_off(console: Console, title: str, items: Sequence[_Item]) -> Iterator[_Item]:
    """Yield the items. On a terminal, a bar counts many of them."""
    if len(items) < _MANY:
        yield from items
        return
    with counting(console, title) as show:
        for done, item in enumerate(items):
            show(done, len(items))
            yield item


_FIRST_S, _EVERY_S = 3.0, 10.0


class LogProgress:
    """To be called as often as one likes; seconds by the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._next = self._began + _FIRST_S

    def __call__(self, passage: "Passage") -> None:
        """``read 310 MB of 1000 MB in 5 s``; nothing once all is read."""
        now = self._clock()
        if now < self._next or passage.num_bytes == passage.total_bytes:
            return
        self._next = now + _EVERY_S
        of = "" if passage.total_bytes is None else f" of {passage.total_bytes / 1e6:.0f} MB"
        read = f"read {passage.num_bytes / 1e6:.0f} MB{of} in {now - self._began:.0f} s"
        sys.stderr.write(f"{read}; Ctrl-C ends reading\n")
        sys.stderr.flush()


class CellProgress:
    """Bars of all runs and of the one that is at work, and a line for each that has ended."""

    def __init__(self, bar: "Bar", num_runs: int, clock: Callable[[], float]) -> None:
        self._bar, self._num_runs, self._num_done, self._clock, self._began = bar, num_runs, 0, clock, clock()
        self._all = bar.add_task("runs", total=num_runs, eta="")
        self._run: TaskID | None = None
        self._title = ""

    def expect(self, num_runs: int) -> None:
        """Set how many runs there will be in all."""
        self._num_runs = num_runs
        self._bar.update(self._all, total=num_runs)

    def start(self, title: str, num_steps: int) -> Show:
        """Begin a run; ``title`` names it."""
        from rich.markup import escape

        self._title, shown = title, escape(on_one_line(title))
        self._run = self._bar.add_task(shown, total=num_steps, eta="")
        return _shown(self._bar, self._run, f"{shown}: ")

    def finish(self, line: str) -> None:
        """End the run; ``line`` is its result."""
        if self._run is not None:
            self._bar.remove_task(self._run)
            self._run = None
        self._num_done += 1
        left = max(0, self._num_runs - self._num_done)
        eta = f"{format_seconds((self._clock() - self._began) / self._num_done * left)} left" if left else ""
        if self._bar.console.is_terminal or AMOUNT.get() == "all":
            place = f"[{self._num_done}/{self._num_runs}]"
            self.note(f"{place} {self._title}: {line}{f' ({eta})' if eta else ''}")
        self._bar.update(self._all, advance=1, eta=eta)

    def note(self, line: str) -> None:
        """Show a line about anything else."""
        self._bar.console.print(on_one_line(line), markup=False, soft_wrap=True)


@contextmanager
def cell_progress(
    console: Console, num_runs: int, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[CellProgress]:
    """Show two bars on a terminal; elsewhere a line per finished run with -v. ``num_runs``: runs still to be done."""
    with _bars(console) as bar:
        yield CellProgress(bar, num_runs, clock)
