"""Arbitrary bytes as logs: always lines, never an error, nothing lost."""

import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.foreign.logs.lines import lines_of
from harness.foreign.logs.prefixes import PrefixReader
from harness.foreign.logs.sieve import MAX_PIECE_BYTES, as_text, cleaned_bytes, numbered_pieces
from harness.foreign.logs.sources import LogSource

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
