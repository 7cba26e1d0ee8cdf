"""Progress: a line now and then in a pipe, a bar on a terminal."""

import io
import itertools

from rich.console import Console

from harness.show.progress import counted_off, counting, step_progress


def lines_of(reports, *, terminal=False, every_s=0.01):
    """What is written for a sequence of (phase, last step, seconds of it, seconds left), ``every_s`` seconds apart."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None, highlight=False)
    clock = itertools.count(0, every_s)
    with step_progress(console, 12, clock=lambda: next(clock)) as show:
        for report in reports:
            show(*report)
    return out.getvalue() if terminal else out.getvalue().splitlines()


def test_a_pipe_gets_one_line_per_phase():
    reports = [
        ("start", None, None, None),
        ("import", None, None, None),
        ("import", None, None, None),
        ("step", 0, 0.5, 5.5),
        ("probe", 11, 0.25, 0.0),
    ]
    assert lines_of(reports) == [
        "start",
        "import",
        "step 1/12, 500.0 ms per step, 5.500 s left",
        "probe 12/12, 250.0 ms per step",
    ]


def test_steps_are_reported_again_only_after_ten_seconds():
    steps = [("step", step, 0.01, 0.1) for step in range(12)]
    assert [line.split(",")[0] for line in lines_of(steps)] == ["step 1/12"]
    assert [line.split(",")[0] for line in lines_of(steps, every_s=2.5)] == ["step 1/12", "step 5/12", "step 9/12"]


def test_the_same_step_is_not_reported_twice():
    assert len(lines_of([("step", 3, 0.01, 0.1)] * 5, every_s=60)) == 1


def test_a_terminal_gets_a_bar_that_counts_steps_and_goes_away():
    shown = lines_of([("step", 5, 0.5, 3.0)], terminal=True)
    assert "step" in shown
    assert "6/12" in shown
    assert "3.000 s left" in shown
    assert shown.endswith("\x1b[2K")


def test_words_of_a_phase_are_not_taken_for_markup():
    assert lines_of([("[bold]step", 0, 1.0, 1.0)])[0].startswith("[bold]step 1/12")


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
