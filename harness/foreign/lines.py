"""Parses the lines of training logs of Megatron-Bridge and Megatron-LM that hold measurements.

Bridge prints ``Step Time`` on rank 0, the line of an iteration on the last rank, and memory in GB of 10**9 bytes,
rounded to five digits. Megatron-LM prints the throughput within the line of the iteration, and memory in MB of 2**20
bytes.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from harness.units import GB, MIB

_ITERATION = re.compile(r"\biteration:?\s{1,20}(\d{1,9})\s{0,20}/\s{0,20}(\d{1,12})\s{0,20}(?=\|)")
# NeMo 2 and Nanotron end the line without a bar, and count or name their fields in other ways.
_UNCLOSED = re.compile(r"\bTraining epoch \d{1,9}, iteration |\biteration: ")
_NAMES = {
    "lm_loss": "lm loss", "lm-loss": "lm loss", "reduced_train_loss": "lm loss", "grad_norm": "grad norm",
    "consumed_samples": "consumed samples", "global_batch_size": "global batch size",
}  # fmt: skip
_STEP_TIME = re.compile(
    r"Step Time\s?:\s{0,20}(\d{1,12}(?:\.\d{1,9})?)s\s{1,20}"
    r"GPU utilization:\s{0,20}([\d.]{1,24}|nan|-?inf)\s?(?:MODEL_)?TFLOP/s/GPU"
)
_MEMORY = re.compile(r"\[Rank (\d{1,7})\] \(after (\d{1,9}) iterations?\) memory \((GB|MB)\)")
_WORLD_SIZE = re.compile(r"^using world size:\s{0,4}(\d{1,7})\b|^\s*world_size \.{2,80} (\d{1,7})$")
# Of Megatron, torchrun, Lightning, torchtitan, DeepSpeed's launcher, MLPerf and Hugging Face's trainer.
_ENDS = re.compile(
    r"after training is done|exiting program a(?:fter \S{1,30} minutes|t iteration)|AssertionError: no samples left "
    r"to consume|worker group finished \(SUCCEEDED\)|worker group successfully finished"
    r"|`Trainer\.fit` stopped: `max_|(?:^|INFO - )Training completed$|Process \d{1,10} exits successfully"
    r"|\"run_stop\".{1,400}\"status\": \"success\"|\btrain_runtime['\" ]{0,40}[:=]"
)
_MAY_END = ("training is done", "exiting program", "no samples left", "orker group", "Trainer.fit",
            "Training completed", "successfully", "run_stop", "train_runtime")  # fmt: skip
_BEGINS = re.compile(r"\*{5} Running training \*{5}|Training starts at step \d")
# Every line that holds a record has one of these.
WORDS = (
    "iteration", "Step Time", "memory (", "orld size:", "orld_size ...", "StopIteration", "Training starts",
    "Running training", *_MAY_END,
)  # fmt: skip
_LARGEST = 1e100
_MOST_MEMORY = 1e9  # GB or MB of one rank

_MEMORY_FIELDS = {
    "mem-allocated-gigabytes": "allocated_bytes",
    "mem-max-allocated-gigabytes": "max_allocated_bytes",
    "mem-reserved-gigabytes": "reserved_bytes",
    "mem-max-reserved-gigabytes": "max_reserved_bytes",
    "allocated": "allocated_bytes",
    "max allocated": "max_allocated_bytes",
    "reserved": "reserved_bytes",
    "max reserved": "max_reserved_bytes",
    "total device memory used": "device_used_bytes",
}


@dataclass(frozen=True, slots=True)
class IterationLine:
    """``iteration 12/ 50 | ...``: the fields with a closing bar; a field without it is incomplete."""

    number: int
    total: int
    fields: dict[str, float] = field(default_factory=dict)
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class StepTimeLine:
    """``Step Time : 8.92s GPU utilization: 744.1MODEL_TFLOP/s/GPU``. The line does not name its iteration."""

    seconds: float
    tflops_per_gpu: float


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """``[Rank 0] (after 2 iterations) memory (GB) | ...``, in bytes."""

    rank: int
    iteration: int
    is_decimal: bool
    bytes_of: dict[str, int]


RecordLine = IterationLine | StepTimeLine | MemoryLine | int | Literal["begin", "end"]
"""A number is that of the job's ranks. Training may begin a second time."""


def records_of(text: str) -> Iterator[RecordLine]:
    """Parse a line. Most lines hold no record; a line may also hold several."""
    if "iteration" in text:
        yield from _iterations(text)
        if text.startswith("iteration "):
            return
    for match in _STEP_TIME.finditer(text) if "Step Time" in text else ():
        if (tflops := _number(match[2])) is not None:
            yield StepTimeLine(float(match[1]), tflops)
    if "memory (" in text:
        yield from _memories(text)
    if "world" in text and (size := _WORLD_SIZE.search(text)):
        yield int(size[1] or size[2])
    if _is_end(text):
        yield "end"
    elif ("Training starts" in text or "Running training" in text) and _BEGINS.search(text):
        yield "begin"


def _is_end(text: str) -> bool:
    is_named = any(word in text for word in _MAY_END) and _ENDS.search(text) is not None
    return is_named or text.startswith("StopIteration")


_Plan = tuple[tuple[str, int], ...]  # of each field: its name, and where its number begins
_PLANS: dict[bytes, _Plan] = {}  # by the line without digits: a log repeats its lines
_MOST_PLANS = 100


def _planned(text: str) -> IterationLine | None:
    """Parse a line by the plan of an earlier line, which costs a third; None if there is none, or no number is sure."""
    plan = _PLANS.get(_shape(text))
    if plan is None or "E+1" in text or "e+1" in text:
        return None
    head, *parts = text.split("|")
    number, _, total = head[10:].partition("/")
    fields = {name: float(part[at:]) for (name, at), part in zip(plan, parts, strict=False)}
    return IterationLine(int(number), int(total), fields) if int(number) else None


def _plan(text: str, record: IterationLine) -> None:
    _, *parts = text.split("|")
    is_whole = len(parts) == len(record.fields) + 1 and not parts[-1].strip()
    if not is_whole or len(_PLANS) >= _MOST_PLANS or re.search(r"\|[^:|]*\d[^:|]*:", text):  # a digit moves the colon
        return
    _PLANS[_shape(text)] = tuple((name, part.index(":") + 1) for name, part in zip(record.fields, parts, strict=False))


def _shape(text: str) -> bytes:
    return text.encode(errors="replace").translate(None, b"0123456789")


def _iterations(text: str) -> Iterator[IterationLine]:
    if not text.startswith("iteration "):
        yield from _each_iteration(text)
    elif planned := _planned(text):
        yield planned
    else:
        found = list(_each_iteration(text))
        if len(found) == 1:
            _plan(text, found[0])
        yield from found


def _each_iteration(text: str) -> Iterator[IterationLine]:
    is_unclosed = "iteration: " in text or "Training epoch" in text
    is_unclosed = is_unclosed and _UNCLOSED.search(text) is not None
    for match, body in _bodies("iteration", _ITERATION, text):
        if int(match[1]) == 0:
            continue
        *whole, rest = f"{body}|".split("|") if is_unclosed else body.split("|")
        fields: dict[str, float] = {}
        for part in whole:
            name, _, written = part.partition(":")
            if (value := _number(written)) is not None:
                name = name.strip()
                fields.setdefault(_NAMES.get(name, name), value)
        yield IterationLine(int(match[1]), int(match[2]), fields, is_cut=":" in rest)


def _memories(text: str) -> Iterator[MemoryLine]:
    for match, body in _bodies("[Rank ", _MEMORY, text):
        unit = GB if match[3] == "GB" else MIB
        *whole, last = body.split("|")
        parts = [*whole, last] if re.search(r"\.\d", last) else whole  # no bar ends the line: 592 may be 59235.00, cut
        read: dict[str, int] = {}
        for part in parts:
            name, _, written = part.partition(":")
            value = _number(written)
            if name.strip() in _MEMORY_FIELDS and value is not None and 0 <= value < _MOST_MEMORY:
                read.setdefault(_MEMORY_FIELDS[name.strip()], round(value * unit))
        yield MemoryLine(int(match[1]), int(match[2]), match[3] == "GB", read)


def _bodies(word: str, beginning: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    last: re.Match[str] | None = None
    at = text.find(word)
    while at >= 0:
        if match := beginning.match(text, at):
            if last:
                yield last, text[last.end() : at]
            last = match
        at = text.find(word, at + 1)
    if last:
        yield last, text[last.end() :]


def _number(written: str) -> float | None:
    """Parse a number, also NaN and infinity; None for other text. Numbers out of range become infinite."""
    try:
        value = float(written)
    except ValueError:
        return None
    if "_" in written:  # of Python only
        return None
    return math.copysign(math.inf, value) if abs(value) > _LARGEST else value
