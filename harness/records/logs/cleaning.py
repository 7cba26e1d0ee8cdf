"""Makes text of the bytes of a line: without colours, control characters and invalid UTF-8."""

import re

# ECMA-48: control sequences, commands to the terminal such as its title, and the short escapes.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_CONTROLS = bytes(code for code in (*range(0x20), 0x7F) if code != ord("\t"))
_LATE_CONTROLS = re.compile("[\x80-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def cleaned(raw: bytes) -> str:
    """Return the text of a line. Invalid UTF-8 becomes U+FFFD. Remove characters that change the writing direction."""
    if b"\x1b" in raw:
        raw = _ESCAPES.sub(b"", raw)
    raw = raw.translate(None, _CONTROLS)
    text = raw.decode(errors="replace")
    return text if text.isascii() else _LATE_CONTROLS.sub("", text)
