"""Sizes as torch writes them: two decimals of a binary unit, or whole bytes."""

import re

from harness.units import GIB, MIB

SIZE = r"\d{1,20}(?:\.\d{1,6})? ?(?:bytes|[KMGTPE]iB)"
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,6})?) ?(bytes|[KMGTPE]iB)")
_UNIT_BYTES = {"bytes": 1, "KiB": 1024, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB, "PiB": 1024**2 * GIB,
               "EiB": 1024**3 * GIB}  # fmt: skip
EIB = 1024**3 * GIB  # more than any device: torch prints 17179869184.00 GiB for a number that it does not have


def size_bytes(text: str | None) -> int | None:
    """``2.31 GiB`` in bytes, to the precision of the text; None for none, and for the number that means unknown."""
    match = _SIZE.fullmatch(text) if text else None
    if match is None:
        return None
    value = round(float(match[1]) * _UNIT_BYTES[match[2]])
    return value if value < EIB else None
