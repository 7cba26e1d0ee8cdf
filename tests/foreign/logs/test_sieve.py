"""Any bytes as logs: always lines, nothing lost that is wanted, and no more memory than for a piece."""

import io
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.failures.failure_signs import WORDS_BEFORE_MORE, words_of_failures
from harness.failures.first_failure import first_failure
from harness.foreign.logs.lines import lines_of, log_lines
from harness.foreign.logs.prefixes import PrefixReader
from harness.foreign.logs.sieve import MAX_PIECE_BYTES, Sieve, Wanted, as_text, cleaned_bytes, numbered_pieces
from harness.foreign.logs.sources import LogSource
from harness.foreign.reader import WORDS

DULL = [f"step {n} is dull" for n in range(40_000)]  # about 700 kB, of which the beginning is read whole


def read(lines, wanted):
    stream = io.BufferedReader(io.BytesIO("\n".join(lines).encode() + b"\n"))
    return dict(numbered_pieces(stream, Sieve(wanted)))


def test_only_wanted_lines_and_the_ends_of_a_long_log_are_read():
    lines = [*DULL, "here it is 1", *DULL, "last 2"]
    found = read(lines, Wanted(("it is 1",)))
    assert found[1] == b"step 0 is dull"
    assert found[40_001] == b"here it is 1"
    assert found[80_002] == b"last 2"
    assert not {30_000, 40_000, 40_002, 80_001} & set(found)


def test_lines_after_a_word_are_read_with_it():
    found = read([*DULL, "boom", *DULL], Wanted((), ("boom",), more=3))
    assert [number for number in found if 39_990 < number < 50_000] == [40_001, 40_002, 40_003, 40_004]


@pytest.mark.parametrize("lines", [["one", "two"], DULL[:3], ["", "", "x", ""]])
def test_a_short_log_is_read_whole(lines):
    found = read(lines, Wanted(("nothing",)))
    assert found == {number: line.encode() for number, line in enumerate(lines, 1) if line}


def test_a_line_break_in_a_word_is_the_end_of_the_line():
    found = read([*DULL, "Error: of 3", "plain", "Error: ", "more", *DULL], Wanted((), ("Error:\n",), more=1))
    assert [number for number in found if 39_990 < number < 50_000] == [40_003, 40_004]


FAILURES = (
    ["Traceback (most recent call last):", '  File "/x/schedules.py", line 4, in forward_step', "    raise Odd(x)",
     "job.errors.Odd: seven is odd"],
    ["slurmstepd: error: Detected 1 oom_kill event in StepId=4.0."],
    ["srun: error: n1: task 3: Exited with exit code 137"],
    ["torch.distributed.DistBackendError: NCCL error in: x.cpp:7, internal error", "ncclInternalError: Internal check failed.",
     "Last error:", "Bootstrap : no socket interface found"],
    ["wandb: ERROR not reached"],
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES, ids=[failure[-1][:30] for failure in FAILURES])
def test_a_failure_in_a_long_log_is_the_same_without_the_lines_that_nobody_wants(tmp_path, failure):
    (tmp_path / "a.log").write_text("\n".join([*DULL, *failure, *DULL[:30_000]]) + "\n")
    wanted = Wanted((*words_of_failures(), *WORDS), WORDS_BEFORE_MORE)
    found = [first_failure(log_lines([tmp_path / "a.log"], wanted=each)) for each in (None, wanted)]
    assert found[0] == found[1] is not None


# Pieces of real logs among noise: what a parser stumbles over is nearly right.
SHREDS = st.sampled_from([
    b"[rank3]: ", b"[default3]:", b"0: ", b"17: ", b"[1,5]<stderr>:", b"\n", b"\r", b"\r\n", b"\x1b[31m", b"\x1b]0;", b"\x07",
    b"\x00", b"\xff\xfe", b"\xe2\x82", b"{\"a\": 1}", b"}{\"", b" [2026-08-21 14:03:27.5] iteration 2/ 5 |", b"Step Time : 1",
    b"2026-08-21 14:03:27,1 - a.b - INFO - ", b"INFO:x:", b"[NeMo W 2026-08-21 14:03:27 rank:3 x:1]", b"n1:1:2 [3] NCCL WARN ",
    b"Traceback (most recent call last):", b"[Rank 0] (after 2 iterations) memory (GB) |", b" " * 40_000, b"x" * 70_000, b"[", b"(",
])  # fmt: skip
LOGS = st.lists(st.one_of(SHREDS, st.binary(max_size=30)), max_size=60).map(b"".join)
SOURCE = LogSource("fuzzed", None, rank=0)


def always(content):
    lines = list(lines_of(SOURCE, io.BufferedReader(io.BytesIO(b"log\n" * 4096 + content))))
    assert all(line.text and not set("\n\r\x00\x1b").intersection(line.text) for line in lines)
    assert all(len(line.text) <= MAX_PIECE_BYTES for line in lines)
    numbers = [line.number for line in lines]
    for rank in {line.rank for line in lines}:  # a line that waits for its end lets other ranks pass
        own = [(line.host or "", line.number) for line in lines if line.rank == rank]
        assert all(each == sorted(each) for each in ([n for h, n in own if h == host] for host, _ in own[:3]))
    assert max(numbers) <= content.count(b"\n") + 4097
    assert all(line.rank is None or 0 <= line.rank < 10**6 for line in lines)


def nothing_lost(content):
    content = content.replace(b"\x1b", b"")
    pieces = b"".join(piece for _, piece in numbered_pieces(io.BufferedReader(io.BytesIO(content))))
    assert pieces == cleaned_bytes(content).replace(b"\n", b"").replace(b"\r", b"")


def the_same_twice(content):
    """Cleaning is done, and a line without prefixes keeps none."""
    text = as_text(cleaned_bytes(content.replace(b"\r", b"").replace(b"\n", b"")))
    assert as_text(cleaned_bytes(text.encode())) == text
    read = PrefixReader(None, []).read(text)
    assert read.text in text


def any_bytes(content):
    always(content)
    nothing_lost(content)
    the_same_twice(content)


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.data_too_large])
@given(LOGS)
def test_arbitrary_bytes_are_read_as_lines(content):
    any_bytes(content)


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
