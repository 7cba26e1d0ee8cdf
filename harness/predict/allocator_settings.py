"""Reads the settings of torch's caching allocator by torch's own rules, and applies those that decide about sizes.

The rules are those of torch 2.11, which was asked value by value (c10/core/AllocatorConfig.cpp,
c10/cuda/CUDAAllocatorConfig.cpp). It also takes numbers with letters behind them, and any word in place of a comma or a
colon; mbr-perf does not.
"""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from harness.errors import BadRequestError, nearest
from harness.experiment.experiment import ExperimentSpec
from harness.experiment.software import ALLOCATOR_NAMES, Software
from harness.launch.environment_rows import ALLOCATOR, EXPANDABLE_SEGMENTS
from harness.resolve.recipe import NO_EFFECT
from harness.units import MIB

MIN_BLOCK_BYTES = 512  # kMinBlockSize
SMALL_BYTES, SMALL_SEGMENT_BYTES = MIB, 2 * MIB  # kSmallSize, kSmallBuffer
LARGE_SEGMENT_BYTES = 20 * MIB  # kLargeBuffer
_MIN_LARGE_BYTES, ROUND_LARGE_BYTES = 10 * MIB, 2 * MIB  # kMinLargeAlloc, kRoundLarge

_INTERVALS = 16  # of roundup_power2_divisions: [1, 2, 4 ... 32768] MiB, the first also below and the last also above
_NO_DIVISIONS = (0,) * _INTERVALS

_KNOWN = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11")  # 2.11 was run, the source of the others was read


def is_known(torch_release: str) -> bool:
    """Return whether the replay's rules are those of a release such as ``2.11.0+cu130``."""
    return ".".join(torch_release.split(".")[:2]) in _KNOWN


@dataclass(frozen=True)
class AllocatorSettings:
    """The settings that change which memory the allocator takes. ``memory_fraction`` None: all of the device."""

    expandable_segments: bool = False
    max_split_bytes: float = math.inf
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    garbage_collection_threshold: float = 0.0
    memory_fraction: float | None = None
    roundup_divisions: tuple[int, ...] = _NO_DIVISIONS

    @property
    def collects(self) -> bool:
        """Return whether `garbage_collect_cached_blocks` ever runs: only with a memory fraction below 1."""
        return self.garbage_collection_threshold > 0 and self.memory_fraction is not None

    @property
    def inert(self) -> str | None:
        """Return what of the settings has no effect, and why."""
        if self.garbage_collection_threshold == 0 or self.collects:
            return None
        fractions = "per_process_memory_fraction (or torch.cuda.set_per_process_memory_fraction)"
        return f"garbage_collection_threshold needs {fractions}"

    def rounded(self, num_bytes: int) -> int:
        """Return the bytes of a request's block (`round_size`, `roundup_power2_next_division`): 5000 become 5120.

        With 4 divisions 130 MiB become 160: the next of four steps between 128 and 256.
        """
        if self.roundup_divisions is _NO_DIVISIONS:
            return -(-max(num_bytes, 1) // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
        divisions = self.roundup_divisions[min(max(num_bytes.bit_length() - 21, 0), _INTERVALS - 1)]
        step = MIN_BLOCK_BYTES
        if divisions > 1 and num_bytes > MIN_BLOCK_BYTES * divisions:
            step = 1 << (num_bytes.bit_length() - divisions.bit_length())
        return -(-max(num_bytes, 1) // step) * step

    def segment_bytes(self, block_bytes: int) -> int:
        """Return the size of a new segment for a block (`get_allocation_size`)."""
        if block_bytes <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if block_bytes < _MIN_LARGE_BYTES:
            return self.large_segment_bytes
        return -(-block_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def asked_settings(spec: ExperimentSpec) -> tuple[AllocatorSettings, str]:
    """Return the allocator's settings in a run of ``spec``, and their text; BadRequestError if torch refuses them."""
    name = next((each for each in ALLOCATOR_NAMES if each in spec.env), None)
    if name is None:
        text = "" if spec.ddp.nccl_ub or spec.gpu_type.is_cpu else EXPANDABLE_SEGMENTS  # as the launcher sets it
        return settings_of(text), text
    return settings_of(spec.env[name], where=name), spec.env[name]


def with_expandable_segments(spec: ExperimentSpec) -> ExperimentSpec:
    """Return the job with expandable segments, and of its other settings the memory fraction alone."""
    fraction = asked_settings(spec)[0].memory_fraction
    text = EXPANDABLE_SEGMENTS + f",per_process_memory_fraction:{fraction}" * (fraction is not None)
    names = [each for each in ALLOCATOR_NAMES if each in spec.env] or ALLOCATOR_NAMES[:1]
    graphs = {"NCCL_GRAPH_REGISTER": "0"} if spec.cuda_graph.impl != "none" else {}
    return spec.model_copy(update={"env": {**spec.env, **dict.fromkeys(names, text), **graphs}})


def notes_of(spec: ExperimentSpec, software: Software, assume: str | None = None) -> tuple[str, ...]:
    """Say what of the allocator's settings has no effect, and whether the job's torch is unknown."""
    is_of_job = "torch=" in (assume or "") or not software.assumed  # else it is the planning machine's
    torch_release = software.torch if is_of_job else None
    inert = asked_settings(spec)[0].inert
    notes = [f"{NO_EFFECT}: {ALLOCATOR}: {inert}"] if inert else []
    if torch_release and not is_known(torch_release):
        notes.append(
            f"torch {torch_release}: reserved bytes follow the allocator of torch {_KNOWN[0]} to {_KNOWN[-1]}, "
            "whose rules this release may have changed"
        )
    return tuple(notes)


def settings_of(text: str, where: str = ALLOCATOR_NAMES[0]) -> AllocatorSettings:
    """Return the settings in such a text, e.g. ``max_split_size_mb:128``. BadRequestError if torch refuses it."""
    asked = _read(text, where)
    if asked.backend == "cudaMallocAsync":
        raise BadRequestError(
            f"{where}={text}: backend cudaMallocAsync: CUDA's own pool serves the requests; its rules are not public",
            remedy="leave backend out: mbr-perf replays torch's own allocator",
        )
    fraction, split_mib = asked.per_process_memory_fraction, asked.max_split_size_mb
    return AllocatorSettings(
        expandable_segments=asked.expandable_segments == "True",
        max_split_bytes=math.inf if split_mib is None else split_mib * MIB,
        max_non_split_rounding_bytes=asked.max_non_split_rounding_mb * MIB,
        large_segment_bytes=asked.large_segment_size_mb * MIB,
        garbage_collection_threshold=asked.garbage_collection_threshold or 0.0,
        memory_fraction=fraction if fraction < 1 else None,
        roundup_divisions=asked.roundup_power2_divisions,
    )


def require_taken(text: str, where: str) -> None:
    """Raise BadRequestError for settings that torch refuses. It takes cudaMallocAsync, which only a replay does not."""
    _read(text, where)


def _read(text: str, where: str) -> "_Asked":
    pairs = [*_PAIR.finditer(plain := re.sub(r"\s", "", text))]
    if "".join(pair[0] for pair in pairs) != plain:
        raise BadRequestError(f"{where}={text}: not NAME:VALUE,NAME:VALUE", remedy=f"e.g. {EXPANDABLE_SEGMENTS}")
    try:
        return _Asked.model_validate({pair[1]: pair[2] for pair in pairs})
    except ValidationError as error:
        found = error.errors()[0]
        key = str(found["loc"][0])
        if found["type"] == "extra_forbidden":
            raise BadRequestError(f"{where}={text}: no such setting: {key!r}", remedy=nearest(key, _KEYS)) from error
        why = (
            found["msg"]
            .removeprefix("Value error, ")
            .replace(", unable to parse string as an integer", ": digits alone")
        )
        raise BadRequestError(f"{where}={text}: {key} cannot be {found['input']!r}", remedy=why) from error


# A value may be a list in brackets.
_PAIR = re.compile(r"([^,:\[\]]+):(\[[^\]]*\]|[^,:\[\]]+)(?:,|$)")


def _roundup(text: object) -> tuple[int, ...]:
    """A number for every size, or a list of ``bound:divisions``; ``>`` stands for all intervals behind the last."""
    if not str(text).startswith("["):
        return (_power_of_two(str(text)),) * _INTERVALS
    found, last = [*_NO_DIVISIONS], 0
    for nth, pair in enumerate(filter(None, str(text)[1:-1].split(","))):
        bound, _, number = pair.partition(":")
        divisions = 0 if number == "0" else _power_of_two(number)
        if bound == ">":
            found[last + 1 :] = [divisions] * (_INTERVALS - last - 1)
            continue
        last = min(_power_of_two(bound).bit_length() - 1, _INTERVALS - 1)
        found[last if nth else 0 : last + 1] = [divisions] * (1 if nth else last + 1)
    return tuple(found)


def _power_of_two(text: str) -> int:
    if not text.isdecimal() or int(text).bit_count() != 1:
        raise ValueError("intervals and divisions have to be powers of 2")
    return int(text)


_Truth = Literal["True", "False"]


class _Asked(BaseModel):
    """The settings in torch's words. From ``release_lock_on_cudamalloc`` on they change no size and no address."""

    model_config = ConfigDict(extra="forbid")

    backend: Literal["native", "cudaMallocAsync"] = "native"
    expandable_segments: _Truth = "False"
    large_segment_size_mb: int = Field(default=LARGE_SEGMENT_BYTES // MIB, gt=10)
    max_split_size_mb: int | None = Field(default=None, lt=2**64)
    max_non_split_rounding_mb: int = LARGE_SEGMENT_BYTES // MIB
    garbage_collection_threshold: float | None = Field(default=None, gt=0, lt=1)
    per_process_memory_fraction: float = Field(default=1, ge=0, le=1)
    roundup_power2_divisions: Annotated[tuple[int, ...], BeforeValidator(_roundup)] = _NO_DIVISIONS
    release_lock_on_cudamalloc: _Truth = "False"
    pinned_use_cuda_host_register: _Truth = "False"
    pinned_use_background_threads: _Truth = "False"
    graph_capture_record_stream_reuse: _Truth = "False"
    pinned_num_register_threads: int = 1
    pinned_reserve_segment_size_mb: int = 0

    @field_validator("max_split_size_mb", "max_non_split_rounding_mb")
    @classmethod
    def _at_least_a_segment(cls, mib: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("large_segment_size_mb", 0)
        if mib is not None and mib < least:
            raise ValueError(f"must be >= {least}")
        return mib


_KEYS = tuple(_Asked.model_fields)
