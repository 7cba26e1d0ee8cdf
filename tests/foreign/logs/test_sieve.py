"""Lines that nobody wants are left out of a long log, and every other line keeps its number."""

import io

import pytest

from harness.failures.failure_signs import WORDS_BEFORE_MORE, words_of_failures
from harness.failures.first_failure import first_failure
from harness.foreign.logs.lines import log_lines
from harness.foreign.logs.sieve import Sieve, Wanted, numbered_pieces
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
