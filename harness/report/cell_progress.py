"""Progress of a sweep: which run is at work, its steps, and when all are done."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from harness.report.console import Console, on_one_line
from harness.report.progress import PlainLines, Show
from harness.units import format_seconds


class CellProgress(Protocol):
    """What is told as a sweep goes on. ``title`` names a run; ``show`` is that of :func:`step_progress`."""

    def start(self, title: str, num_steps: int) -> Show:
        """A run begins."""

    def finish(self, line: str) -> None:
        """It has ended; ``line`` says how."""

    def say(self, line: str) -> None:
        """Something else happened."""


@contextmanager
def cell_progress(
    console: Console, num_runs: int, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[CellProgress]:
    """Two bars on a terminal, lines elsewhere. ``num_runs``: runs that are still to be done."""
    if not console.is_terminal:
        yield _Lines(console, num_runs, clock)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[eta]}"))  # fmt: skip
    with Bar(*columns, console=console, transient=True) as bar:
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
        self._console, self._clock, self._pace = console, clock, _Pace(num_runs, clock)

    def start(self, title: str, num_steps: int) -> Show:
        self.say(f"[{self._pace.num_done + 1}/{self._pace.num_runs}] {title}")
        return PlainLines(self._console, num_steps, self._clock).show

    def finish(self, line: str) -> None:
        left = self._pace.done()
        self.say(f"  {line}{f' ({left})' if left else ''}")

    def say(self, line: str) -> None:
        self._console.print(on_one_line(line), markup=False, soft_wrap=True)


class _Bars:
    def __init__(self, bar: Bar, num_runs: int, clock: Callable[[], float]) -> None:
        self._bar, self._pace = bar, _Pace(num_runs, clock)
        self._all = bar.add_task("runs", total=num_runs, eta="")
        self._run: TaskID | None = None
        self._title = ""

    def start(self, title: str, num_steps: int) -> Show:
        self._title = title
        run = self._run = self._bar.add_task(escape(on_one_line(title)), total=num_steps, eta="")

        def show(phase: str, step: int | None, _last_step_s: float | None, eta_s: float | None) -> None:
            eta = f"{format_seconds(eta_s)} left" if eta_s else ""
            done = 0 if step is None else step + 1
            self._bar.update(run, description=f"{escape(on_one_line(title))}: {phase}", completed=done, eta=eta)

        return show

    def finish(self, line: str) -> None:
        if self._run is not None:
            self._bar.remove_task(self._run)
            self._run = None
        self.say(f"{self._title}: {line}")
        self._bar.update(self._all, advance=1, eta=self._pace.done())

    def say(self, line: str) -> None:
        self._bar.console.print(on_one_line(line), markup=False, soft_wrap=True)
