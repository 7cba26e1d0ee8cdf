"""Progress of a launch, a sweep and the reading of logs: lines in a pipe, bars on a terminal."""

import io
import itertools

from rich.console import Console

from harness.foreign.logs.lines import log_lines
from harness.foreign.logs.sources import Passage
from harness.show.page import AMOUNT
from harness.show.progress import LogProgress, cell_progress, counted_off, counting, step_progress


def shown_for(reports, *, terminal):
    """What is written for a sequence of (phase, last step, seconds of it, seconds left)."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None, highlight=False)
    with step_progress(console, 12) as show:
        for report in reports:
            show(*report)
    return out.getvalue()


def test_a_terminal_gets_a_bar_that_counts_steps_and_goes_away_and_a_file_nothing():
    shown = shown_for([("step", 5, 0.5, 3.0)], terminal=True)
    assert [part for part in ("training", "6/12", "3.000 s left") if part not in shown] == []
    assert shown.endswith("\x1b[2K")
    assert shown_for([("start", None, None, None), ("step", 0, 0.5, 5.5)], terminal=False) == ""


def test_counting_draws_on_a_terminal_and_is_silent_on_a_pipe():
    def shown(is_terminal, num):
        out = io.StringIO()
        console = Console(file=out, force_terminal=is_terminal, width=80)
        assert list(counted_off(console, "Reading logs", range(num))) == list(range(num))
        return out.getvalue()

    assert "Reading logs" in shown(True, 99) and "98/99" in shown(True, 99)
    assert shown(False, 99) == shown(True, 3) == ""


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


def test_a_pipe_gets_a_line_for_each_finished_run_with_details_only():
    assert piped("all") == ["[1/2] none: ok: 500 ms per step (6.000 s left)", "mlp is not tried", "[2/2] [mlp]: ok"]
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


def test_a_file_that_was_read_at_once_has_no_progress(tmp_path, capsys):
    (tmp_path / "a.log").write_text("a line of a job\n")
    clock = itertools.count(0, 60)
    assert (
        len(list(log_lines([tmp_path / "a.log"], passage=Passage(on_progress=LogProgress(lambda: next(clock)))))) == 1
    )
    assert capsys.readouterr().err == ""


def test_a_file_that_takes_long_is_reported_until_its_end(tmp_path, capsys):
    (tmp_path / "a.log").write_text("a line of a job\n" * 40_000)
    clock = itertools.count(0, 60)
    for _ in log_lines([tmp_path / "a.log"], passage=Passage(on_progress=LogProgress(lambda: next(clock)))):
        pass
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("read 0 MB of 1 MB in 60 s")
    assert len(lines) in (2, 3)  # of 3 pieces of 256 KiB, perhaps after a short first one; the last ends the file
