"""Reading a log takes no more memory than a piece of it, however long its lines are."""

import subprocess
import sys

import pytest

from harness.foreign.logs.sieve import MAX_PIECE_BYTES

MIB = 1024**2
LIMIT_BYTES = 96 * MIB  # of address space: Python with this package takes about 40 MiB of it
LARGER_BYTES = LIMIT_BYTES + 32 * MIB
COUNTED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), resource.RLIM_INFINITY))
from harness.foreign.logs.lines import log_lines
lines = longest = 0
for line in log_lines([sys.argv[1]]):
    lines, longest, last = lines + 1, max(longest, len(line.text)), line
print(lines, longest, last.number, last.text)
"""


def read_in_a_small_room(path):
    argv = [sys.executable, "-c", COUNTED, str(path), str(LIMIT_BYTES)]
    out = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=280).stdout
    lines, longest, number, text = out.split(maxsplit=3)
    return int(lines), int(longest), int(number), text.strip()


def hole_then_error(path, size):
    """A log with a hole of ``size``, as a log has that was truncated while it was written; a sparse file."""
    with path.open("wb") as stream:
        stream.write(b"begin\n")
        stream.seek(size)
        stream.write(b"RuntimeError: behind the hole\n")
    return path


def endless_line(path, size):
    with path.open("wb") as stream:
        for _ in range(size // MIB):
            stream.write(b"0123456789abcdef" * (MIB // 16))
        stream.write(b"\nlast\n")
    return path


@pytest.mark.slow
def test_a_hole_that_is_larger_than_memory_is_passed_over(tmp_path):
    lines, _, number, text = read_in_a_small_room(hole_then_error(tmp_path / "train.log", LARGER_BYTES))
    assert (lines, number, text) == (2, 2, "RuntimeError: behind the hole")


@pytest.mark.slow
def test_a_line_that_is_larger_than_memory_comes_in_pieces(tmp_path):
    path = endless_line(tmp_path / "train.log", LARGER_BYTES)
    lines, longest, number, text = read_in_a_small_room(path)
    assert (longest, number, text) == (MAX_PIECE_BYTES, 2, "last")
    assert lines == LARGER_BYTES // MAX_PIECE_BYTES + 1
