"""A stream cut into lines, and lines that never end into pieces."""

from collections.abc import Iterator
from io import BufferedReader

MAX_PIECE_BYTES = 1 << 16


def numbered_pieces(stream: BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Every line with its number, without its end; what a carriage return overwrites comes apart, as do long lines.

    A long line is cut at the last space of its second half, or at the end of a hole in the file, where there is one.
    """
    number, rest = 1, b""
    while raw := stream.readline(MAX_PIECE_BYTES - len(rest)):
        line, rest = rest + raw, b""
        is_cut = not raw.endswith(b"\n") and len(line) >= MAX_PIECE_BYTES
        if is_cut and (cut := max(line.rfind(blank, MAX_PIECE_BYTES // 2) for blank in (b" ", b"\0"))) > 0:
            line, rest = line[:cut], line[cut:]
        for segment in line.rstrip(b"\r\n").split(b"\r"):
            if segment:
                yield number, segment
        number += raw.endswith(b"\n")
    if rest:
        yield number, rest
