"""Progress while logs are read: shown during reading, and not once all is read."""

import itertools

from harness.foreign.logs.lines import log_lines
from harness.foreign.logs.sources import Passage
from harness.show.progress import LogProgress


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
