"""Files that are no log: known by how they begin, refused in words."""

PEEK_BYTES = 8192

_MAX_ODD_SHARE = 0.3  # of the bytes looked at; text in an old 8-bit encoding stays below, compressed data is near 0.5
_TEXT_BYTES = bytes((*range(0x20, 0x7F), 0, 7, 8, 9, 10, 12, 13, 27))  # NUL: a log truncated while it is written

# How files begin -> what they are. Nothing is unpacked here: what comes out may be of any size.
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "compressed (gzip)", "zcat FILE | mbr-perf ... -"),
    (b"(\xb5/\xfd", "compressed (zstd)", "zstdcat FILE | mbr-perf ... -"),
    (b"BZh", "compressed (bzip2)", "bzcat FILE | mbr-perf ... -"),
    (b"\xfd7zXZ", "compressed (xz)", "xzcat FILE | mbr-perf ... -"),
    (b"PK\x03\x04", "a zip archive or a checkpoint, no log", "unpack it, or name the log"),
    (b"\x80\x02", "a pickle, no log", "name the log"),
    (b"\x80\x03", "a pickle, no log", "name the log"),
    (b"\x80\x04", "a pickle, no log", "name the log"),
    (b"\x80\x05", "a pickle, no log", "name the log"),
    (b"\x7fELF", "a program, no log", "name the log"),
    (b"\x89PNG", "a picture, no log", "name the log"),
    (b"SQLite format 3", "a database, no log", "name the log"),
    (b"\xff\xfe", "UTF-16, not UTF-8", "iconv -f UTF-16 -t UTF-8 FILE | mbr-perf ... -"),
    (b"\xfe\xff", "UTF-16, not UTF-8", "iconv -f UTF-16 -t UTF-8 FILE | mbr-perf ... -"),
)


def why_refused(head: bytes) -> tuple[str, str] | None:
    """What a file that begins with ``head`` is instead of a log, and what to do; None for text, and for an empty file."""
    for magic, what, remedy in _MAGIC:
        if head.startswith(magic):
            return what, remedy
    return ("binary, no log", "name the log") if _odd_share(head[:PEEK_BYTES]) > _MAX_ODD_SHARE else None


def _odd_share(head: bytes) -> float:
    """Share of control characters and of bytes that are no UTF-8; a character cut off by the end of ``head`` is one."""
    if not head:
        return 0.0
    beyond_ascii = sum(byte > 0x7F for byte in head)
    undecodable = head.decode(errors="replace").count("\ufffd") if beyond_ascii else 0
    controls = len(head.translate(None, _TEXT_BYTES)) - beyond_ascii
    return (controls + undecodable) / len(head)
