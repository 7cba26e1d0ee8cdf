"""The short spelling of `moe_layer_freq`: ``[0]*3+[1]*58`` for three dense layers and 58 MoE layers."""

import re

_TERM = re.compile(r"\[([01])\]\*([1-9][0-9]{0,3})")


def read_layer_freq(text: str) -> tuple[int, ...]:
    """One 0 or 1 per layer.

    >>> read_layer_freq("[0]*1+[1]*3")
    (0, 1, 1, 1)
    """
    pattern: tuple[int, ...] = ()
    for term in text.replace(" ", "").strip("()").split("+"):
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"{text!r} is not a layer pattern such as [0]*3+[1]*58")
        pattern += (int(match[1]),) * int(match[2])
    return pattern


def with_num_layers(pattern: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """The pattern for another depth: the leading dense layers stay, the rest are MoE.

    >>> with_num_layers((0, 0, 0, 1, 1, 1, 1), 5)
    (0, 0, 0, 1, 1)
    """
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    return tuple(0 if i < dense else 1 for i in range(num_layers))
