"""Reads the settings of torch's caching allocator by torch's own rules, and applies those that decide about sizes.

The rules are those of torch 2.11, which was asked value by value (c10/core/AllocatorConfig.cpp,
c10/cuda/CUDAAllocatorConfig.cpp). Releases up to 2.9 also want "," and ":" where 2.11 skips any word, refuse a
`max_split_size_mb` of 20 itself, and know neither `large_segment_size_mb` nor `per_process_memory_fraction`.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

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
_MOST = 2**64 - 1

_KNOWN = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11")  # 2.11 was run, the source of the others was read


def is_known(torch_release: str) -> bool:
    """Return whether the replay's rules are those of a release such as ``2.11.0+cu130``."""
    return ".".join(torch_release.split(".")[:2]) in _KNOWN


class _RefusedError(Exception):
    """What torch says of a value."""


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
    """Return the job with expandable segments and no other setting of the allocator that takes memory.

    A memory fraction stays. CUDA graphs then need one more variable.
    """
    fraction = asked_settings(spec)[0].memory_fraction
    text = EXPANDABLE_SEGMENTS + f",per_process_memory_fraction:{fraction}" * (fraction is not None)
    names = [each for each in ALLOCATOR_NAMES if each in spec.env] or ALLOCATOR_NAMES[:1]
    graphs = {"NCCL_GRAPH_REGISTER": "0"} if spec.cuda_graph.impl != "none" else {}
    return spec.model_copy(update={"env": {**spec.env, **dict.fromkeys(names, text), **graphs}})


def notes_of(spec: ExperimentSpec, software: Software, assume: str | None = None) -> tuple[str, ...]:
    """Say what of the allocator's settings has no effect, and whether the job's torch is unknown.

    ``assume``: what a user says of the software. BadRequestError for settings that torch refuses.
    """
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
    """Return the settings in a text such as ``expandable_segments:True,max_split_size_mb:128``.

    BadRequestError for a value that torch refuses; it says what torch would.
    """
    words, settings = re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"\s", "", text)), AllocatorSettings()
    # torch reads its environment twice: the first time decides which large segments the second knows
    for _ in range(2):
        settings = _read(words, AllocatorSettings(large_segment_bytes=settings.large_segment_bytes), f"{where}={text}")
    if "cudaMallocAsync" in words:
        raise BadRequestError(
            f"{where}={text}: backend cudaMallocAsync: CUDA's own pool serves the requests; its rules are not public",
            remedy="leave backend out: mbr-perf replays torch's own allocator",
        )
    return settings


def require_taken(text: str, where: str) -> None:
    """Raise BadRequestError for settings that torch refuses. It takes cudaMallocAsync, which only a replay does not."""
    if "cudaMallocAsync" not in text:
        settings_of(text, where)


def _read(words: list[str], settings: AllocatorSettings, where: str) -> AllocatorSettings:
    at = 0
    while at < len(words):
        key = words[at]
        if key not in _KEYS:
            said = f"torch says: Unrecognized key '{key}' in Accelerator allocator config."
            raise BadRequestError(f"{where}: no such setting: {key!r}", remedy=f"{nearest(key, _KEYS)}\n  {said}")
        try:
            value, at = _value(words, at + 2)
            if key in _UNREAD:
                _UNREAD[key](value[0])
            else:
                name, read = _FIELDS[key]
                settings = replace(settings, **{name: read(settings, value, key)})
        except _RefusedError as error:
            raise BadRequestError(
                f"{where}: torch refuses this value of {key}", remedy=f"torch says: {error}"
            ) from error
        at += 1  # torch skips the word behind a value without looking at it
    return settings


def _value(words: list[str], at: int) -> tuple[list[str], int]:
    """Return the words of the value that begins at ``at``, and where the next words begin (`skipKey`)."""
    end = at
    if words[at : at + 1] == ["["]:
        end = words.index("]", at) if "]" in words[at:] else len(words)
    if end >= len(words):
        raise _RefusedError("Index out of bounds in ConfigTokenizer")
    return words[at : end + 1], end + 1


def _whole(word: str) -> int:
    """Return a number as C's `stoull` reads it: what follows the digits is ignored, -1 is the largest number."""
    found = re.match(r"[+-]?\d+", word)
    if found is None or len(found[0]) > 100 or abs(int(found[0])) > _MOST:
        raise _RefusedError("stoull")
    return int(found[0]) % (_MOST + 1)


def _real(word: str) -> float:
    """Return a number as C's `stod` reads it."""
    found = re.match(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", word, re.IGNORECASE)
    if found is None:
        raise _RefusedError("stod")
    return float(found[0])


def _truth(word: str) -> bool:
    if word not in ("True", "False"):
        raise _RefusedError(f"Expected 'True' or 'False' at index 2 in ConfigTokenizer but got '{word}'")
    return word == "True"


def _at_least_a_segment(settings: AllocatorSettings, value: list[str], key: str) -> int:
    """Return bytes of a number of MiB that may not be below a large segment."""
    mib = _whole(value[0])
    if mib * MIB < settings.large_segment_bytes:
        least = settings.large_segment_bytes // MIB
        raise _RefusedError(f"CachingAllocator option {key} too small, must be >= {least}")
    return mib * MIB


def _large_segment(_: AllocatorSettings, value: list[str], key: str) -> int:
    num_bytes = _whole(value[0]) * MIB
    if num_bytes <= _MIN_LARGE_BYTES:
        raise _RefusedError(f"CachingAllocator option {key} must be > 10 MB")
    return num_bytes


def _collection(_: AllocatorSettings, value: list[str], __: str) -> float:
    threshold = _real(value[0])
    if not 0 < threshold < 1:
        raise _RefusedError("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
    return threshold


def _fraction(_: AllocatorSettings, value: list[str], key: str) -> float | None:
    fraction = _real(value[0])
    if not 0 <= fraction <= 1:
        raise _RefusedError(f"{key} is invalid, set it in [0.0, 1.0]")
    return fraction if fraction < 1 else None


def _divisions(word: str, or_nothing: str = "") -> int:
    number = _whole(word)
    if number.bit_count() != 1 and not (or_nothing and number == 0):
        raise _RefusedError(f"For roundups, the divisions has to be power of 2{or_nothing}")
    return number


def _roundup(settings: AllocatorSettings, value: list[str], _: str) -> tuple[int, ...]:
    """A number for every size, or a list of ``bound:divisions``; ``>`` stands for all intervals behind the last."""
    if value[0] != "[":
        return (_divisions(value[0]),) * _INTERVALS
    found, last, is_first = list(settings.roundup_divisions), 0, True
    for at in range(1, len(value) - 1, 4):
        bound, count = value[at], _divisions(value[at + 2] if at + 2 < len(value) else "]", " or 0 to disable roundup")
        if bound == ">":
            found[last + 1 :] = [count] * (_INTERVALS - last - 1)
            continue
        if (mib := _whole(bound)).bit_count() != 1:
            raise _RefusedError("For roundups, the intervals have to be power of 2")
        last = min(mib.bit_length() - 1, _INTERVALS - 1)
        found[0 if is_first else last : last + 1] = [count] * (last + 1 if is_first else 1)
        is_first = False
    return tuple(found)


def _backend(word: str) -> None:
    if word not in ("native", "cudaMallocAsync"):
        raise _RefusedError("Unknown allocator backend, options are native and cudaMallocAsync")


# The field of each key, and what reads it.
_FIELDS: dict[str, tuple[str, Callable[[AllocatorSettings, list[str], str], Any]]] = {
    "expandable_segments": ("expandable_segments", lambda _, value, __: _truth(value[0])),
    "max_split_size_mb": ("max_split_bytes", _at_least_a_segment),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _at_least_a_segment),
    "large_segment_size_mb": ("large_segment_bytes", _large_segment),
    "garbage_collection_threshold": ("garbage_collection_threshold", _collection),
    "per_process_memory_fraction": ("memory_fraction", _fraction),
    "roundup_power2_divisions": ("roundup_divisions", _roundup),
}
# Keys that change neither sizes nor addresses on the device; only their value is checked.
_UNREAD: dict[str, Callable[[str], object]] = {
    "backend": _backend,
    "release_lock_on_cudamalloc": _truth,
    "pinned_use_cuda_host_register": _truth,
    "pinned_use_background_threads": _truth,
    "graph_capture_record_stream_reuse": _truth,
    "pinned_num_register_threads": _whole,
    "pinned_reserve_segment_size_mb": _whole,
}
_KEYS = (*_FIELDS, *_UNREAD)
