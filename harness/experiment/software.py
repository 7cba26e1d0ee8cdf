"""The software that decides which rules apply, and what `--assume` says of it."""

from harness.errors import BadRequestError, raise_all
from harness.experiment.frozen import Frozen
from harness.experiment.gpu import GPUS
from harness.units import parse_version

# Rules of this release are assumed where megatron-core is not installed: the release that mbr-perf is tested with.
ASSUMED_MEGATRON_CORE = "0.16.1"
# Assumed for a GPU job that will run on another machine: the newest release in the range that megatron-core 0.16
# declares.
ASSUMED_TRANSFORMER_ENGINE = "2.11"

# Variables with the settings of torch's allocator: torch reads the first that is set, megatron-core only the first.
ALLOCATOR_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

_ASSUMABLE = ("megatron-core", "transformer-engine", "torch", "python", "gpu", "apex")


class Software(Frozen):
    """The software of a job; None: not installed, or unknown. ``gpu`` is a row of GPUS, of the machine if it differs.

    ``apex``: whether its kernel for weight gradients can be imported. ``assumed``: transformer-engine's version is.
    """

    megatron_core: str | None = None
    transformer_engine: str | None = None
    torch: str | None = None
    python: str | None = None
    gpu: str | None = None
    apex: bool | None = None
    assumed: bool = False


def parse_assume(text: str, installed: Software) -> Software:
    """Replace parts by ``--assume``: ``megatron-core=0.19.2,transformer-engine=none,gpu=h100``. BadRequestError."""
    values: dict[str, str | bool | None] = {}
    problems: list[BadRequestError] = []
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        problem = _assume_problem(name, value)
        if problem:
            problems.append(BadRequestError(f"--assume {part.strip()!r}: {problem}"))
        else:
            known = value != "none" if name == "apex" else value
            values[name.replace("-", "_")] = None if known == "none" else known
    raise_all(problems)
    if "transformer_engine" in values:
        values["assumed"] = False
    return installed.model_copy(update=values)


def _assume_problem(name: str, value: str) -> str | None:
    if name not in _ASSUMABLE:
        return f"unknown name {name!r}; known: {', '.join(_ASSUMABLE)}"
    if name == "gpu":
        return None if value in GPUS else f"unknown GPU type {value!r}; known: {', '.join(GPUS)}"
    if name == "apex":
        return None if value in ("none", "installed") else "none or installed: its releases have no numbers"
    if value == "none":
        return None
    try:
        parse_version(value)
    except ValueError as error:
        return str(error)
    return None
