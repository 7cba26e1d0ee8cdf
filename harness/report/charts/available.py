"""Whether pictures can be drawn here, and how to make it so."""

from importlib.util import find_spec

MISSING = "No pictures: mbr-perf[report] is not installed (pip install 'mbr-perf[report]': altair, vl-convert-python)."


def can_draw() -> bool:
    """Whether the packages of the extra ``report`` are there; imports none of them."""
    return all(find_spec(name) is not None for name in ("altair", "vl_convert"))
