"""Progress of training steps: a bar on a terminal, a plain line now and then in a pipe."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from harness.units import format_seconds

EVERY_S = 10.0

Show = Callable[[str, int | None, float | None, float | None], None]


@contextmanager
def step_progress(console: Console, num_steps: int) -> Iterator[Show]:
    """Yields ``show(phase, last finished step or None, seconds of it, seconds left)``, to be called as often as one likes."""
    if console.is_terminal:
        yield from _bar(console, num_steps)
    else:
        yield _plain(console, num_steps)


def _bar(console: Console, num_steps: int) -> Iterator[Show]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[eta]}"))  # fmt: skip
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("start", total=num_steps, eta="")

        def show(phase: str, step: int | None, _last_step_s: float | None, eta_s: float | None) -> None:
            eta = "" if eta_s is None else f"{format_seconds(eta_s)} left"
            bar.update(task, description=phase, completed=0 if step is None else step + 1, eta=eta)

        yield show


def _plain(console: Console, num_steps: int) -> Show:
    state: dict[str, object] = {"phase": None, "step": None, "said_at": -EVERY_S}

    def show(phase: str, step: int | None, last_step_s: float | None, eta_s: float | None) -> None:
        now = time.monotonic()
        new_phase = phase != state["phase"]
        due = step != state["step"] and now - float(str(state["said_at"])) >= EVERY_S
        if not new_phase and not due:
            return
        state.update(phase=phase, step=step, said_at=now)
        done = "" if step is None else f" {step + 1}/{num_steps}"
        took = "" if last_step_s is None else f", {format_seconds(last_step_s)} per step"
        left = "" if eta_s is None else f", {format_seconds(eta_s)} left"
        console.print(f"{phase}{done}{took}{left}", markup=False, soft_wrap=True)

    return show
