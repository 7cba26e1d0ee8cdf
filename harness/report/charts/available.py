"""Whether pictures can be drawn here, and if not, why and how to make it so."""

import resource
from importlib.util import find_spec

_NOT_INSTALLED = (
    "No pictures: mbr-perf[report] is not installed (pip install 'mbr-perf[report]': altair, vl-convert-python)."
)
# The V8 engine inside vl-convert reserves 67.4 GB of addresses (not memory) and ends the whole process without them.
_ADDRESSES_BYTES = 80_000_000_000


def obstacle() -> str:
    """Why there are no pictures, in one sentence; empty where they can be drawn. Imports nothing of what draws."""
    if any(find_spec(name) is None for name in ("altair", "vl_convert")):
        return _NOT_INSTALLED
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _ADDRESSES_BYTES:
        return (
            f"No pictures: drawing needs {_ADDRESSES_BYTES / 1e9:g} GB of address space, and ulimit -v allows "
            f"{limit / 1e9:.3g} GB (mbr-perf report draws them in a shell without that limit)."
        )
    return ""


def can_draw() -> bool:
    """Whether nothing stands in the way."""
    return not obstacle()
