"""Progress of training steps: a bar on a terminal, a plain line now and then in a pipe."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from harness.report.console import Console
from harness.units import format_seconds

EVERY_S = 10.0

Show = Callable[[str, int | None, float | None, float | None], None]


@contextmanager
def step_progress(console: Console, num_steps: int, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Show]:
    """Yields ``show(phase, last finished step or None, seconds of it, seconds left)``, to be called as often as one likes.

    ``clock`` (seconds) decides when a pipe has waited long enough for another line.
    """
    if console.is_terminal:
        yield from _bar(console, num_steps)
    else:
        yield PlainLines(console, num_steps, clock).show


def _bar(console: Console, num_steps: int) -> Iterator[Show]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[eta]}"))  # fmt: skip
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("start", total=num_steps, eta="")

        def show(phase: str, step: int | None, _last_step_s: float | None, eta_s: float | None) -> None:
            eta = f"{format_seconds(eta_s)} left" if eta_s else ""
            bar.update(task, description=phase, completed=0 if step is None else step + 1, eta=eta)

        yield show


@dataclass
class PlainLines:
    """A line for every new phase, and for news within one every ``EVERY_S`` seconds; ``label`` begins each."""

    console: Console
    num_steps: int
    clock: Callable[[], float]
    phase: str | None = None
    step: int | None = None
    said_at: float = 0.0
    label: str = ""

    def show(self, phase: str, step: int | None, last_step_s: float | None, eta_s: float | None) -> None:
        """As `step_progress` yields it."""
        now = self.clock()
        if phase == self.phase and (step == self.step or now - self.said_at < EVERY_S):
            return
        self.phase, self.step, self.said_at = phase, step, now
        done = "" if step is None else f" {step + 1}/{self.num_steps}"
        took = "" if last_step_s is None else f", {format_seconds(last_step_s)} per step"
        left = f", {format_seconds(eta_s)} left" if eta_s else ""
        self.console.print(f"{self.label}{phase}{done}{took}{left}", markup=False, soft_wrap=True)
