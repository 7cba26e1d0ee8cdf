"""What a plain YAML scalar means here: only spellings that YAML 1.1 and 1.2 read alike."""

import math
import re

ScalarValue = None | bool | int | float | str

_WORDS: dict[str, ScalarValue] = {"true": True, "false": False, "null": None, "~": None, "": None}
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+][0-9]+)?")
_MAY_BE_A_TRAP = frozenset("+-.0123456789yYnNoOtTfF")

_TRAPS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), what, fix)
    for pattern, what, fix in (
        (r"(?i:yes|no|on|off|y|n)", "YAML 1.1 reads it as a boolean, YAML 1.2 as text", "write true or false, or quote it"),
        (r"(?i:true|false)", "only true and false are booleans", "write it in lower case, or quote it"),
        (r"(?i:null)", "only null is null", "write null, or quote it"),
        (r"(?i:[-+]?\.(?:inf|nan))", "it is not a finite number", "write a finite number"),
        (r"[-+]?0[0-9_]+", "YAML 1.1 reads a leading zero as octal", "drop the zero, or quote it"),
        (r"[-+]?0[xXoObB][0-9a-fA-F_]+", "it is not decimal", "write it in decimal, or quote it"),
        (r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", "YAML 1.1 reads it in base 60", "quote it"),
        (r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?", "YAML 1.1 reads it as a date", "quote it"),
        (r"\+[0-9.].*", "numbers carry no plus sign", "drop the plus, or quote it"),
        (r"-?[0-9][0-9_]*_[0-9_.]*", "YAML versions differ on digits with underscores", "drop the underscores"),
        (r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+", "YAML 1.1 reads it as text",
         "write digits on both sides of the point and a signed exponent, as in 1.0e-3"),
        (r"-?(?:\.[0-9]+|[0-9]+\.)", "a number has digits on both sides of the point", "write it as in 0.5 or 1.0"),
    )
)  # fmt: skip


class AmbiguousScalarError(ValueError):
    """A plain scalar that readers of YAML disagree on."""

    def __init__(self, text: str, what: str, fix: str) -> None:
        super().__init__(f"{text!r} is ambiguous: {what}")
        self.fix = fix


def read_plain(text: str) -> ScalarValue:
    """The value of an unquoted scalar; AmbiguousScalarError when its meaning depends on who reads it."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _MAY_BE_A_TRAP:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise AmbiguousScalarError(text, "it is not a finite number", "write a finite number")
        return number
    for pattern, what, fix in _TRAPS:
        if pattern.fullmatch(text):
            raise AmbiguousScalarError(text, what, fix)
    return text
