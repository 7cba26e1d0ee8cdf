"""Shows the progress of a run, of many runs and of a log that is read."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from harness.foreign.logs.sources import Passage
from harness.show.page import AMOUNT, on_one_line
from harness.show.terminal import Console
from harness.units import format_seconds

_PATIENCE_S = 0.5
_Item = TypeVar("_Item")

_PHASES = {"start": "starting", "import": "importing torch", "init_process_group": "connecting ranks",
           "step": "training", "probe": "measuring memory", "finish": "writing results"}  # fmt: skip
Show = Callable[[str, int | None, float | None, float | None], None]


@contextmanager
def step_progress(console: Console, num_steps: int) -> Iterator[Show]:
    """Yield ``show(phase, last finished step or None, seconds of it, seconds left)``, to be called often.

    A bar on a terminal; nothing elsewhere.
    """
    if not console.is_terminal:
        yield _silent
        return
    with _bars(console) as bar:
        yield _shown(bar, bar.add_task("starting", total=num_steps, eta=""))


def _silent(_phase: str, _step: int | None, _last_step_s: float | None, _eta_s: float | None) -> None:
    pass


def _bars(console: Console) -> Bar:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[eta]}"))  # fmt: skip
    return Bar(*columns, console=console, transient=True)


def _shown(bar: Bar, task: TaskID, before: str = "") -> Show:
    def show(phase: str, step: int | None, _last_step_s: float | None, eta_s: float | None) -> None:
        eta = f"{format_seconds(eta_s)} left" if eta_s else ""
        bar.update(
            task,
            description=f"{before}{_PHASES.get(phase, phase.replace('_', ' '))}",
            completed=0 if step is None else step + 1,
            eta=eta,
        )

    return show


class Counting(Protocol):
    """Is called with the number done, the number to do, and a text on what is known so far."""

    def __call__(self, done: int, of: int, text: str = "") -> None:
        """Show them."""


@contextmanager
def counting(console: Console, title: str) -> Iterator[Counting]:
    """Show a bar on a terminal, from the first call on; nothing elsewhere."""
    if not console.is_terminal:
        yield lambda done, of, text="": None  # noqa: ARG005
        return
    with _bars(console) as bar:
        task = bar.add_task(title, total=None, visible=False, eta="")
        yield lambda done, of, text="": bar.update(task, completed=done, total=of, visible=True, eta=text)


def counted_off(
    console: Console, title: str, items: Sequence[_Item], *, clock: Callable[[], float] = time.monotonic
) -> Iterator[_Item]:
    """Yield the items. On a terminal, a bar counts them from the moment when they have taken ``_PATIENCE_S``."""
    waiting, began, num_done = iter(items), clock(), 0
    for item in waiting:
        yield item
        num_done += 1
        if console.is_terminal and clock() - began > _PATIENCE_S:
            break
    if num_done == len(items):
        return
    with counting(console, title) as show:
        for done, item in enumerate(waiting, num_done):
            show(done, len(items))
            yield item


_FIRST_S, _FIRST_ON_TERMINAL_S, _EVERY_S = 5.0, 1.0, 10.0


class LogProgress:
    """To be called as often as one likes; seconds by the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._next = self._began + (_FIRST_ON_TERMINAL_S if sys.stderr.isatty() else _FIRST_S)

    def __call__(self, passage: Passage) -> None:
        """``read 310 MB of 1000 MB in 5 s``; nothing once all is read."""
        now = self._clock()
        if now < self._next or passage.num_bytes == passage.total_bytes:
            return
        self._next = now + _EVERY_S
        of = "" if passage.total_bytes is None else f" of {passage.total_bytes / 1e6:.0f} MB"
        waits = "" if passage.num_bytes else "; waiting for input"
        read = f"read {passage.num_bytes / 1e6:.0f} MB{of} in {now - self._began:.0f} s{waits}"
        sys.stderr.write(f"{read}; Ctrl-C ends reading\n")
        sys.stderr.flush()


class CellProgress(Protocol):
    """Receives the progress of a sweep. ``title`` names a run; ``show`` is that of :func:`step_progress`."""

    def start(self, title: str, num_steps: int) -> Show:
        """Begin a run."""

    def finish(self, line: str) -> None:
        """End the run; ``line`` is its result."""

    def note(self, line: str) -> None:
        """Show a line about anything else."""


@contextmanager
def cell_progress(
    console: Console, num_runs: int, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[CellProgress]:
    """Show two bars on a terminal; elsewhere a line per finished run with -v. ``num_runs``: runs still to be done."""
    if not console.is_terminal:
        yield _Lines(console, num_runs, clock)
        return
    with _bars(console) as bar:
        yield _Bars(bar, num_runs, clock)


class _Pace:
    """Seconds that are left at the mean pace of the runs so far."""

    def __init__(self, num_runs: int, clock: Callable[[], float]) -> None:
        self.num_runs, self.num_done, self._clock, self._began = num_runs, 0, clock, clock()

    def done(self) -> str:
        """Count a run; how long the others will take."""
        self.num_done += 1
        left = max(0, self.num_runs - self.num_done)
        seconds = (self._clock() - self._began) / self.num_done * left
        return f"{format_seconds(seconds)} left" if left else ""


class _Lines:
    def __init__(self, console: Console, num_runs: int, clock: Callable[[], float]) -> None:
        self._console, self._pace, self._title = console, _Pace(num_runs, clock), ""

    def start(self, title: str, num_steps: int) -> Show:  # noqa: ARG002 (as the bars take it)
        self._title = title
        return _silent

    def finish(self, line: str) -> None:
        left = self._pace.done()
        if AMOUNT.get() == "all":
            place = f"[{self._pace.num_done}/{self._pace.num_runs}]"
            self.note(f"{place} {self._title}: {line}{f' ({left})' if left else ''}")

    def note(self, line: str) -> None:
        self._console.print(on_one_line(line), markup=False, soft_wrap=True)


class _Bars:
    def __init__(self, bar: Bar, num_runs: int, clock: Callable[[], float]) -> None:
        self._bar, self._pace = bar, _Pace(num_runs, clock)
        self._all = bar.add_task("runs", total=num_runs, eta="")
        self._run: TaskID | None = None
        self._title = ""

    def start(self, title: str, num_steps: int) -> Show:
        self._title, shown = title, escape(on_one_line(title))
        self._run = self._bar.add_task(shown, total=num_steps, eta="")
        return _shown(self._bar, self._run, f"{shown}: ")

    def finish(self, line: str) -> None:
        if self._run is not None:
            self._bar.remove_task(self._run)
            self._run = None
        self.note(f"{self._title}: {line}")
        self._bar.update(self._all, advance=1, eta=self._pace.done())

    def note(self, line: str) -> None:
        self._bar.console.print(on_one_line(line), markup=False, soft_wrap=True)
