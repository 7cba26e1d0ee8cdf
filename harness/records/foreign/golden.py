"""JSON of golden files of others, and the values in them."""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.records.foreign.log import LogFormat
from harness.records.strict_json import an_object, once_each, unreadable

_MAX_BYTES = 256 * 1024**2
_MAX_PROBLEMS = 10
_LARGEST, _SMALLEST = 1e18, 1e-100

_NUMBER = re.compile(r"\d+")

Keys = tuple[str, ...]


class NotANumber:
    """Stands where the file says NaN or Infinity, so that its key can be named."""

    def __init__(self, written: str) -> None:
        self.written = written


def read_plain(path: Path, may_be_nan: Collection[str] = ()) -> dict[str, object]:
    """The object in the file. BadRequestError for what is no strict JSON, is too large, or holds NaN or Infinity.

    Of the keys ``may_be_nan`` they are left for the reader, as :class:`NotANumber`.
    """
    try:
        with path.open("rb") as file:  # pipes and devices have no size that could be asked before
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise BadRequestError(f"{path}: over {_MAX_BYTES // 1024**2} MiB, which no golden file is")
        text = content.decode("utf-8")
    except OSError as error:
        raise BadRequestError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadRequestError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        value = json.loads(text, object_pairs_hook=once_each, parse_constant=NotANumber)
    except json.JSONDecodeError as error:
        raise BadRequestError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise BadRequestError(unreadable(path, text, error)) from error
    document = an_object(path, value)
    refuse_non_numbers(path, document, may_be_nan)
    return document


def refuse_non_numbers(path: Path, document: Mapping[str, object], may_be_nan: Collection[str] = ()) -> None:
    """BadRequestError that names the keys of NaN and Infinity, of each metric the first; 1e999 is one too."""
    found: dict[tuple[str, Keys], list[Keys]] = {}
    waiting: list[tuple[Keys, object]] = [((), document)]
    while waiting:
        keys, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(((*keys, name), inner) for name, inner in reversed(value.items()))
        elif isinstance(value, list):
            waiting.extend(((*keys, str(index)), inner) for index, inner in reversed(tuple(enumerate(value))))
        elif isinstance(value, NotANumber) and keys[-1] not in may_be_nan:
            found.setdefault(
                (f"{value.written} is not a number that anything can be judged by", _metric(keys)), []
            ).append(keys)
        elif isinstance(value, float) and not math.isfinite(value):
            found.setdefault(("a number that is beyond all measure", _metric(keys)), []).append(keys)
    raise_all([problem(path, alike[0], what + _rest(alike)) for (what, _), alike in found.items()][:_MAX_PROBLEMS])


def _metric(keys: Keys) -> Keys:
    """The keys without the numbers of steps."""
    return tuple(key for key in keys if not _NUMBER.fullmatch(key))


def _rest(alike: Sequence[Keys]) -> str:
    return f"; so {len(alike) - 1} more of this metric" if len(alike) > 1 else ""


def number(path: Path, keys: Keys, value: object, found: list[BadRequestError]) -> float | None:
    """A number, NaN where the file says that there is none; None for null. Anything else is put to ``found``."""
    if value is None:
        return None
    if isinstance(value, NotANumber):
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        found.append(problem(path, keys, f"{shown(value)} is no number"))
        return None
    if abs(value) > _LARGEST or 0 < abs(value) < _SMALLEST:
        found.append(problem(path, keys, "a number that is beyond all measure"))
        return None
    return float(value)


def problem(path: Path, keys: Keys, what: str) -> BadRequestError:
    """``golden.json: 17: lm loss: ...``."""
    return BadRequestError(": ".join((str(path), *keys, what)))


def shown(value: object) -> str:
    """A value for a message, short."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 40 else f"{text[:37]}..."


@dataclass(frozen=True, slots=True)
class GoldenStep:
    """What the golden says of one iteration; None where it says nothing, NaN where it says that."""

    step_time_s: float | None = None
    tflops_per_gpu: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class ForeignGolden:
    """A parsed golden file. ``steps`` by iteration, counted from 1 as in logs, in order.

    ``memory``: bytes by the names of :class:`RankMemory`, as Bridge stores them: allocated and its peak from the first
    report of a log, the reserved peak from all. ``memory_by_iteration``: the same names, as Megatron-LM stores them: the
    last rank's, iteration by iteration. ``layout`` says which part of the file was read. ``of_whole_run``: the peaks are
    those of a whole run, as in files that mbr-perf exports, not of a log's first report.
    """

    path: Path
    format: LogFormat
    layout: str
    steps: Mapping[int, GoldenStep]
    memory: Mapping[str, int] = field(default_factory=dict)
    memory_by_iteration: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    of_whole_run: bool = False
    notes: tuple[str, ...] = ()

    @property
    def timed(self) -> tuple[int, ...]:
        """The iterations that a window can count. Metrics of Megatron-LM have steps of their own."""
        if self.format == "bridge":
            return tuple(self.steps)
        timed = (n for n, step in self.steps.items() if step.step_time_s is not None or step.tflops_per_gpu is not None)
        return tuple(timed) or tuple(self.steps)

    @property
    def has_throughput(self) -> bool:
        """Whether any step has one."""
        return any(step.tflops_per_gpu is not None for step in self.steps.values())

    @property
    def has_loss(self) -> bool:
        """Whether any step has one."""
        return any(step.loss is not None for step in self.steps.values())
