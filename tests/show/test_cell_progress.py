"""Progress of a sweep: lines in a pipe, bars on a terminal, both with how a run ended and what is left."""

import io

from rich.console import Console

from harness.show.page import AMOUNT
from harness.show.progress import cell_progress


class Clock:
    """A clock that a test moves forward."""

    now = 0.0

    def __call__(self):
        return self.now


def piped(amount):
    stream, clock = io.StringIO(), Clock()
    before = AMOUNT.set(amount)
    with cell_progress(Console(file=stream), 2, clock=clock) as progress:
        show = progress.start("none", 4)
        show("step", 1, 0.5, 1.0)
        clock.now = 6.0
        progress.finish("ok: 500 ms per step")
        progress.note("mlp is not tried")
        progress.start("[mlp]", 4)
        progress.finish("ok")
    AMOUNT.reset(before)
    return stream.getvalue().splitlines()


def test_a_pipe_gets_a_line_for_each_finished_run_with_details():
    assert piped("all") == ["[1/2] none: ok: 500 ms per step (6.000 s left)", "mlp is not tried", "[2/2] [mlp]: ok"]


def test_a_pipe_gets_no_progress_without_details():
    assert piped("usual") == ["mlp is not tried"]


def test_a_terminal_keeps_the_ends_of_runs_above_the_bars():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    with cell_progress(console, 2) as progress:
        show = progress.start("[mlp]", 4)
        show("step", 1, 0.5, 1.0)
        progress.finish("ok: 500 ms per step")
        progress.start("none", 4)
    assert "[mlp]: ok: 500 ms per step" in stream.getvalue()
    assert "runs" in stream.getvalue()
