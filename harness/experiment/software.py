"""Versions of the software that decides which rules apply, and their comparison."""

import re
from dataclasses import dataclass
from functools import cache

from harness.errors import BadRequestError, raise_all
from harness.experiment.gpu import GPUS, Frozen

# Rules of this release are assumed where megatron-core is not installed: the release that mbr-perf is tested with.
ASSUMED_MEGATRON_CORE = "0.16.1"
# Assumed for a GPU job that will run on another machine: the newest release in the range that megatron-core 0.16 declares.
ASSUMED_TRANSFORMER_ENGINE = "2.11"

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|b|c|rc|alpha|beta|preview)[-_.]?(?P<pre_number>\d*))?"
    r"(?:[-_.]?(?P<post>post)[-_.]?(?P<post_number>\d*))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_number>\d*))?"
    r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?",
    re.IGNORECASE,
)
_PHASES = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "preview": 2}
_DEV_ONLY, _FINAL = -1, 3

_ASSUMABLE = {
    "megatron-core": "megatron_core",
    "transformer-engine": "transformer_engine",
    "torch": "torch",
    "python": "python",
    "gpu": "gpu",
}


@dataclass(frozen=True, order=True)
class Version:
    """A PEP 440 version without epoch, ordered as PEP 440 orders it; the local part (``+cu128``) does not count.

    >>> parse_version("0.18.0rc2") < parse_version("0.18") < parse_version("0.18.0.post1")
    True
    """

    release: tuple[int, ...]
    phase: int
    phase_number: int
    post: int
    final: bool
    dev: int


@cache
def parse_version(text: str) -> Version:
    """Read ``1.2.3``, ``2.6.0dev0``, ``0.18rc1`` or ``2.7.0.post1+cu128``; ValueError for anything else."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a version such as 0.16.1, 0.18rc1 or 0.20.0dev0")
    release = tuple(int(part) for part in match["release"].split("."))
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    pre, post, dev = match["pre"], match["post"], match["dev"]
    if pre:
        phase, phase_number = _PHASES[pre.lower()], int(match["pre_number"] or 0)
    else:
        phase, phase_number = (_DEV_ONLY if dev and not post else _FINAL), 0
    return Version(
        release=release,
        phase=phase,
        phase_number=phase_number,
        post=int(match["post_number"] or 0) if post else -1,
        final=dev is None,
        dev=int(match["dev_number"] or 0) if dev else 0,
    )


class Software(Frozen):
    """The software of a job. None: not installed, and for ``megatron_core`` also unknown. ``gpu`` is a row of GPUS.

    A ``gpu`` that differs from the request's own is what the machine really has. ``apex``: whether its kernel for weight
    gradients can be imported; None if nobody looked.
    """

    megatron_core: str | None = None
    transformer_engine: str | None = None
    torch: str | None = None
    python: str | None = None
    gpu: str | None = None
    apex: bool | None = None


def parse_assume(text: str, installed: Software) -> Software:
    """Replace parts of ``installed`` by the values of ``--assume``: ``megatron-core=0.19.2,transformer-engine=none,gpu=h100``.

    Raises BadRequestError naming every part that is wrong.
    """
    values: dict[str, str | None] = {}
    problems: list[BadRequestError] = []
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        problem = _assume_problem(name, value)
        if problem:
            problems.append(BadRequestError(f"--assume {part.strip()!r}: {problem}"))
        else:
            values[_ASSUMABLE[name]] = None if value == "none" else value
    raise_all(problems)
    return installed.model_copy(update=values)


def _assume_problem(name: str, value: str) -> str | None:
    if name not in _ASSUMABLE:
        return f"unknown name {name!r}; known: {', '.join(_ASSUMABLE)}"
    if name == "gpu":
        return None if value in GPUS else f"unknown GPU type {value!r}; known: {', '.join(GPUS)}"
    if value == "none":
        return None
    try:
        parse_version(value)
    except ValueError as error:
        return str(error)
    return None
