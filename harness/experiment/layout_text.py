"""Parses the text of ``pipeline_model_parallel_layout``.

Its grammar is that of megatron-core's `pipeline_parallel_layer_layout.py`: ``E`` embedding, ``t`` decoder layer, ``m``
MTP layer, ``L`` loss; ``|`` ends a stage; ``x*3`` and ``(xy|)*3`` repeat; commas mean nothing.
"""

import re

from harness.experiment.model import MOST

LAYER_CODES = "ELtm"
_SYMBOL = re.compile(r"\*\d+|.", re.DOTALL)


class LayoutSyntaxError(ValueError):
    """The grammar does not allow this character in this place."""

    def __init__(self, character: str, reason: str) -> None:
        super().__init__(reason)
        self.character = character


def parse_layout(text: str) -> tuple[str, ...]:
    """Return the stages in the order of megatron-core: virtual stage outermost, pipeline rank innermost.

    >>> parse_layout("Et*3|(tt|)*2L")
    ('Ettt', 'tt', 'tt', 'L')
    """
    symbols = _SYMBOL.findall(text.replace(",", ""))
    flat, position = _sequence(symbols, 0, nested=False)
    if position != len(symbols):
        raise LayoutSyntaxError(")", "a parenthesis is closed that was not opened")
    return tuple(flat.split("|"))


def _sequence(symbols: list[str], position: int, *, nested: bool) -> tuple[str, int]:
    parts: list[str] = []
    while position < len(symbols) and symbols[position] != ")":
        part, position = _item(symbols, position, nested=nested)
        if position < len(symbols) and symbols[position].startswith("*") and len(symbols[position]) > 1:
            part = _repeated(part, symbols[position])
            position += 1
        parts.append(part)
    return "".join(parts), position


def _repeated(part: str, symbol: str) -> str:
    """Return ``part`` as often as ``*N`` says; LayoutSyntaxError if a model cannot have so many layers."""
    digits, most = symbol[1:], MOST["layers"]
    if len(digits) > len(str(most)) or len(part) * int(digits) > 2 * most:
        raise LayoutSyntaxError(symbol[0], f"a layout has at most {most} layers")
    return part * int(digits)


def _item(symbols: list[str], position: int, *, nested: bool) -> tuple[str, int]:
    symbol = symbols[position]
    if symbol == "(":
        return _group(symbols, position, nested=nested)
    if symbol in LAYER_CODES or symbol == "|":
        return symbol, position + 1
    raise LayoutSyntaxError(symbol[0], f"{symbol[0]!r} is not one of E, t, m, L, |, ',', '(...)*N' and 'x*N'")


def _group(symbols: list[str], position: int, *, nested: bool) -> tuple[str, int]:
    if nested:
        raise LayoutSyntaxError("(", "parentheses cannot be nested")
    inner, end = _sequence(symbols, position + 1, nested=True)
    if end == len(symbols):
        raise LayoutSyntaxError("(", "a parenthesis is not closed")
    repeated = end + 1 < len(symbols) and re.fullmatch(r"\*\d+", symbols[end + 1])
    if not repeated or end == position + 1:
        raise LayoutSyntaxError("(", "a parenthesis needs content and a repeat count: (tt|)*4")
    return inner, end + 1


def chunks_of_layout(text: str, num_stages: int) -> int:
    """Return the model chunks per pipeline rank of a layout string; 1 also for a string that is no layout."""
    try:
        return max(1, len(parse_layout(text)) // num_stages)
    except LayoutSyntaxError:
        return 1
