"""What a log or a golden says, written as Megatron-Bridge's golden JSON."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadRequestError
from harness.imports.golden.bridge import (
    LOSS,
    MEMORY,
    OF_WHOLE_RUN,
    STEP,
    THROUGHPUT,
    TIME_MS,
    bridge_report,
    read_bridge,
    unwrap,
)
from harness.imports.golden.values import read_plain
from harness.imports.log.values import ForeignLog, Iteration
from harness.records.store import write_atomically
from harness.units import GB

MAX_STEPS = 10_000
# Steps that are kept whatever the number of steps: the last of a short benchmark among them.
_ALWAYS_KEPT = ("0", "49")

Document = dict[str, object]


def actuals_of(log: ForeignLog) -> Document:
    """The log's values under Bridge's keys; what the log does not say, or says is NaN, is left out."""
    document: Document = {str(one.number - 1): _step(one) for one in log.iterations}
    for key, counter in MEMORY.items():
        report = bridge_report(log, counter)
        if report is not None:
            document[key] = float(f"{getattr(report, counter) / GB:.5g}")
    return document


def write_actuals(path: Path, log: ForeignLog) -> None:
    """Write the log's values, added to those of earlier segments that the file holds.

    BadRequestError for a file that holds something else, or cannot be written.
    """
    prior: Mapping[str, object] | None = None
    if path.exists():
        prior = _prior(path)
    text = bridge_text(downsample(merge(prior, actuals_of(log))))
    try:
        write_atomically(path, text)
    except OSError as error:
        raise BadRequestError(
            f"{path}: cannot be written: {error.strerror}", remedy="name a file in a folder that is there"
        ) from error


def _prior(path: Path) -> Mapping[str, object] | None:
    try:
        document = read_plain(path)
        if not document:
            return None
        read_bridge(path, document)
    except BadRequestError as error:
        remedy = "it is not added to; name a new file, or one of Megatron-Bridge's golden values, with --actuals"
        raise BadRequestError(error.message, remedy=remedy) from error
    return {key: value for key, value in unwrap(path, document)[1].items() if key != OF_WHOLE_RUN}


def bridge_text(document: Mapping[str, object]) -> str:
    """As a file holds it."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def merge(prior: Mapping[str, object] | None, segment: Mapping[str, object]) -> Document:
    """One document of a job that ran in segments: of what both say, the later counts."""
    merged = {**(prior or {}), **{key: value for key, value in segment.items() if value is not None}}
    return {key: merged[key] for key in (*_steps(merged), *(key for key in merged if not STEP.fullmatch(key)))}


def downsample(document: Mapping[str, object], max_steps: int = MAX_STEPS) -> Document:
    """Every n-th step of a document that has more than ``max_steps``, with its first, its last, and step 49."""
    steps = _steps(document)
    if len(steps) <= max_steps:
        return dict(document)
    stride = math.ceil(len(steps) / max_steps)
    kept = {*steps[::stride], steps[0], steps[-1], *_ALWAYS_KEPT}
    return {key: value for key, value in document.items() if not STEP.fullmatch(key) or key in kept}


def _steps(document: Mapping[str, object]) -> list[str]:
    return sorted((key for key in document if STEP.fullmatch(key)), key=int)


def _step(one: Iteration) -> Document:
    milliseconds = None if one.step_time_s is None else round(one.step_time_s * 1000, 6)
    values = {LOSS: one.loss, TIME_MS: milliseconds, THROUGHPUT: one.tflops_per_gpu}
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
