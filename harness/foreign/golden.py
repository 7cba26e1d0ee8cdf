"""Golden files of Megatron-Bridge and Megatron-LM: their JSON and its values."""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.errors import BadRequestError, raise_all
from harness.foreign.log import ForeignLog, LogFormat
from harness.records.golden import GoldenRecord
from harness.records.reading import read_text
from harness.records.strict_json import parse_json
from harness.units import shortened

_MAX_BYTES = 256 * 1024**2
_MAX_PROBLEMS = 10
_LARGEST, _SMALLEST = 1e18, 1e-100

_NUMBER = re.compile(r"\d+")

GoldenFormat = LogFormat | Literal["mbr-perf"]
Keys = tuple[str, ...]


class NotANumber:
    """Stands for a NaN or Infinity in the file, so that an error can name its key."""

    def __init__(self, written: str) -> None:
        self.written = written


def read_plain(path: Path, may_be_nan: Collection[str] = ()) -> dict[str, object]:
    """Read the JSON object in the file. BadRequestError if it is not strict JSON, too large, or holds NaN or Infinity.

    Values of the keys ``may_be_nan`` may be NaN or Infinity; they become :class:`NotANumber`.
    """
    text = read_text(path, str(path), most_bytes=_MAX_BYTES)
    document = parse_json(text, str(path), parse_constant=NotANumber)
    refuse_non_numbers(path, document, may_be_nan)
    return document


def refuse_non_numbers(path: Path, document: Mapping[str, object], may_be_nan: Collection[str] = ()) -> None:
    """Raise BadRequestError naming the first NaN or Infinity of each metric; 1e999 is an Infinity."""
    found: dict[tuple[str, Keys], list[Keys]] = {}
    waiting: list[tuple[Keys, object]] = [((), document)]
    while waiting:
        keys, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(((*keys, name), inner) for name, inner in reversed(value.items()))
        elif isinstance(value, list):
            waiting.extend(((*keys, str(index)), inner) for index, inner in reversed(tuple(enumerate(value))))
        elif isinstance(value, NotANumber) and keys[-1] not in may_be_nan:
            found.setdefault((f"{value.written} is not a number", _metric(keys)), []).append(keys)
        elif isinstance(value, float) and not math.isfinite(value):
            found.setdefault(("the number is out of range", _metric(keys)), []).append(keys)
    raise_all([problem(path, alike[0], what + _rest(alike)) for (what, _), alike in found.items()][:_MAX_PROBLEMS])


def _metric(keys: Keys) -> Keys:
    return tuple(key for key in keys if not _NUMBER.fullmatch(key))


def _rest(alike: Sequence[Keys]) -> str:
    return f"; the same at {len(alike) - 1} more steps of this metric" if len(alike) > 1 else ""


def number(path: Path, keys: Keys, value: object, found: list[BadRequestError]) -> float | None:
    """Return the number; NaN for a NaN in the file, None for null. Add anything else to ``found``."""
    if value is None:
        return None
    if isinstance(value, NotANumber):
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        found.append(problem(path, keys, f"{shown(value)} is not a number"))
        return None
    if abs(value) > _LARGEST or 0 < abs(value) < _SMALLEST:
        found.append(problem(path, keys, "the number is out of range"))
        return None
    return float(value)


def problem(path: Path, keys: Keys, what: str) -> BadRequestError:
    """Build an error such as ``golden.json: 17: lm loss: ...``."""
    return BadRequestError(": ".join((str(path), *keys, what)))


def shown(value: object) -> str:
    """Shorten a value for a message."""
    return shortened(json.dumps(value, default=repr), 40)


@dataclass(frozen=True, slots=True)
class GoldenStep:
    """The golden's values of one iteration. None: not in the file; NaN: the file says NaN."""

    step_time_s: float | None = None
    tflops_per_gpu: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class ForeignGolden:
    """A parsed golden file. ``steps``: by iteration, counted from 1 as in logs, in order.

    ``memory``: bytes under the names of :class:`RankMemory`, as Bridge stores them: allocated and its peak from the
    log's first report, the reserved peak from all reports. ``memory_by_iteration``: the same names for each iteration
    of the last rank, as Megatron-LM stores them. ``layout``: the part of the file that was read. ``of_whole_run``: the
    peaks cover the whole run, as in files that mbr-perf exports, and not only the log's first report. ``num_gpus`` and
    ``global_batch_size``, ``gpu``, ``compute_dtype``: of the job, where the golden states them. ``own``: a golden of
    mbr-perf as it is in the file. ``log``: the log that stands for golden values.
    """

    path: Path
    format: GoldenFormat
    layout: str
    steps: Mapping[int, GoldenStep]
    memory: Mapping[str, int] = field(default_factory=dict)
    memory_by_iteration: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    of_whole_run: bool = False
    num_gpus: int | None = None
    global_batch_size: int | None = None
    gpu: str = ""
    compute_dtype: str = ""
    notes: tuple[str, ...] = ()
    own: GoldenRecord | None = None
    log: ForeignLog | None = None

    @property
    def timed(self) -> tuple[int, ...]:
        """Return the iterations that a window can use. In Megatron-LM, each metric has its own steps."""
        if self.format != "megatron-lm":
            return tuple(self.steps)
        timed = (n for n, step in self.steps.items() if step.step_time_s is not None or step.tflops_per_gpu is not None)
        return tuple(timed) or tuple(self.steps)

    @property
    def has_throughput(self) -> bool:
        return any(step.tflops_per_gpu is not None for step in self.steps.values())

    @property
    def has_loss(self) -> bool:
        return any(step.loss is not None for step in self.steps.values())
