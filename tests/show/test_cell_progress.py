"""Progress of a sweep: lines in a pipe, bars on a terminal, both with how a run ended and what is left."""

import io

from rich.console import Console

from harness.show.progress import cell_progress


class Clock:
    """A clock that a test moves forward."""

    now = 0.0

    def __call__(self):
        return self.now


def test_a_pipe_gets_a_line_for_each_run_its_steps_and_its_end():
    stream, clock = io.StringIO(), Clock()
    with cell_progress(Console(file=stream), 3, clock=clock) as progress:
        show = progress.start("none", 4)
        show("step", 1, 0.5, 1.0)
        clock.now = 6.0
        progress.finish("ok: 500 ms per step")
        progress.note("mlp is not tried")
        progress.start("[mlp]", 4)
    assert stream.getvalue().splitlines() == [
        "[1/3] none",
        "step 2/4, 500.0 ms per step, 1.000 s left",
        "  ok: 500 ms per step (12.000 s left)",
        "mlp is not tried",
        "[2/3] [mlp]",
    ]


def test_nothing_is_left_after_the_last_run():
    stream = io.StringIO()
    with cell_progress(Console(file=stream), 1) as progress:
        progress.start("none", 4)
        progress.finish("ok")
    assert stream.getvalue().splitlines()[-1] == "  ok"


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
