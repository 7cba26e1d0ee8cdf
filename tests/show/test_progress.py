"""Progress: nothing in a pipe, a bar on a terminal."""

import io
import itertools

from rich.console import Console

from harness.show.progress import counted_off, counting, step_progress


def shown_for(reports, *, terminal):
    """What is written for a sequence of (phase, last step, seconds of it, seconds left)."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None, highlight=False)
    with step_progress(console, 12) as show:
        for report in reports:
            show(*report)
    return out.getvalue()


def test_progress_leaves_nothing_behind_in_a_file():
    assert shown_for([("start", None, None, None), ("step", 0, 0.5, 5.5)], terminal=False) == ""


def test_a_terminal_gets_a_bar_that_counts_steps_and_goes_away():
    shown = shown_for([("step", 5, 0.5, 3.0)], terminal=True)
    assert "training" in shown
    assert "6/12" in shown
    assert "3.000 s left" in shown
    assert shown.endswith("\x1b[2K")


def test_counting_draws_on_a_terminal_and_is_silent_on_a_pipe():
    terminal, pipe = (io.StringIO(), io.StringIO())
    for out, is_terminal in ((terminal, True), (pipe, False)):
        console = Console(file=out, force_terminal=is_terminal, width=80)
        items = counted_off(console, "Reading logs", ["a", "b", "c"], clock=itertools.count(step=1.0).__next__)
        assert list(items) == ["a", "b", "c"]
    assert "Reading logs" in terminal.getvalue()
    assert "2/3" in terminal.getvalue()
    assert pipe.getvalue() == ""


def test_counting_shows_no_number_before_it_is_known():
    out = io.StringIO()
    with counting(Console(file=out, force_terminal=True, width=80), "Stages traced") as show:
        pass
    assert "Stages traced" not in out.getvalue()
    with counting(Console(file=out, force_terminal=True, width=80), "Stages traced") as show:
        show(0, 7)
    assert "Stages traced" in out.getvalue()
    assert "0/7" in out.getvalue()
    assert "?" not in out.getvalue().replace("\x1b[?25", "")


def test_counting_draws_nothing_for_work_that_is_done_at_once():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    assert list(counted_off(console, "Reading logs", range(1000), clock=itertools.count(step=0.0001).__next__)) == [
        *range(1000)
    ]
    assert out.getvalue() == ""
