"""Reads golden files of Megatron-Bridge, and writes them from a log or a golden."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadRequestError, os_errors_reported, raise_all
from harness.foreign.golden import ForeignGolden, GoldenStep, number, problem, read_plain, shown
from harness.foreign.log import ForeignLog, Iteration, RankMemory
from harness.records.store import write_atomically
from harness.units import GB

LOSS, TIME_MS, THROUGHPUT = "lm loss", "elapsed time per iteration (ms)", "GPU utilization"
MAY_BE_NAN = (TIME_MS, THROUGHPUT)  # of some steps; a window that holds one is inconclusive
MEMORY = {"alloc": "allocated_bytes", "max_alloc": "max_allocated_bytes", "max_reserved": "max_reserved_bytes"}
# A number, because Megatron-Bridge ignores numbers that it does not know.
OF_WHOLE_RUN = "mbr_perf_peaks_of_whole_run"

STEP = re.compile(r"[0-9]{1,9}")
_DATE = re.compile(r"(\d{1,4})[.\-/_](\d{1,2})[.\-/_](\d{1,4})(?:\D.*)?", re.DOTALL)
_WRAPPERS = ("baseline", "current")
_MAX_KEYS = 8


def looks_like_bridge(document: Mapping[str, object]) -> bool:
    """Return whether the keys are those of a known layout."""
    return any(name in document for name in _WRAPPERS) or _has_steps(document) or bool(_dates(document))


def read_bridge(path: Path, document: Mapping[str, object]) -> ForeignGolden:
    """Read the golden in ``document``. BadRequestError names the keys of all invalid values."""
    layout, inner, notes = unwrap(path, document)
    found: list[BadRequestError] = []
    steps = {
        int(key) + 1: _step(path, key, value, found)
        for key, value in sorted(((k, v) for k, v in inner.items() if STEP.fullmatch(k)), key=lambda pair: int(pair[0]))
    }
    memory = {
        MEMORY[key]: round(gigabytes * GB)
        for key in MEMORY
        if (gigabytes := number(path, (key,), inner.get(key), found)) is not None
    }
    if not steps and not found:
        found.append(_unknown_layout(path, inner))
    raise_all(found[:10])
    whole = inner.get(OF_WHOLE_RUN) == 1
    return ForeignGolden(path, "bridge", layout, steps, memory=memory, of_whole_run=whole, notes=tuple(notes))


def unwrap(path: Path, document: Mapping[str, object]) -> tuple[str, Mapping[str, object], list[str]]:
    """Return the name of the layout, the flat part of the file, and notes on the ignored parts."""
    for name in _WRAPPERS:
        if name in document:
            inner = document[name]
            if not isinstance(inner, dict):
                raise problem(path, (name,), f"must be an object of steps, is {shown(inner)}")
            return name, inner, []
    if _has_steps(document):
        return "flat", document, []
    dates = _dates(document)
    if not dates:
        raise _unknown_layout(path, document)
    newest = max(dates, key=lambda name: dates[name])
    inner = document[newest]
    if not isinstance(inner, dict):
        raise problem(path, (newest,), f"must be an object of steps, is {shown(inner)}")
    notes = [f"{path} holds {len(dates)} snapshots; mbr-perf reads the newest, {newest}"] if len(dates) > 1 else []
    return f"snapshot {newest}", inner, notes


def _has_steps(document: Mapping[str, object]) -> bool:
    return any(STEP.fullmatch(key) for key in document)


def _dates(document: Mapping[str, object]) -> dict[str, tuple[int, int, int]]:
    found = {}
    for key in document:
        match = _DATE.fullmatch(key)
        if match is None:
            continue
        first, second, third = (int(part) for part in match.groups())
        found[key] = (first, second, third) if len(match[1]) == 4 else (third % 100 + 2000, first, second)
    return found


def _step(path: Path, key: str, value: object, found: list[BadRequestError]) -> GoldenStep:
    if not isinstance(value, dict):
        found.append(problem(path, (key,), f"must be an object of metrics, is {shown(value)}"))
        return GoldenStep()
    milliseconds, tflops, loss = (
        number(path, (key, name), value.get(name), found) for name in (TIME_MS, THROUGHPUT, LOSS)
    )
    return GoldenStep(None if milliseconds is None else milliseconds / 1000, tflops, loss)


def _unknown_layout(path: Path, document: Mapping[str, object]) -> BadRequestError:
    keys = ", ".join(repr(key[:40]) for key in list(document)[:_MAX_KEYS]) or "none"
    more = f" and {len(document) - _MAX_KEYS} more" if len(document) > _MAX_KEYS else ""
    return BadRequestError(
        f"{path}: unknown layout of golden values; its keys: {keys}{more}",
        remedy="Megatron-Bridge: steps '0', '1', ... or baseline, current, MM.DD.YY around them; "
        "Megatron-LM: metrics with start_step and values",
    )


OF_THE_FIRST_REPORT = ("allocated_bytes", "max_allocated_bytes")


def bridge_report(log: ForeignLog, counter: str, *, of_whole_run: bool = False) -> RankMemory | None:
    """Return the worst rank's report of ``counter``; None if no rank reports it.

    For allocated bytes, Bridge stores the log's first report, from whichever rank prints first. This function takes all
    ranks of that iteration. For reserved bytes, Bridge stores the largest report; goldens ``of_whole_run`` do so for
    both.
    """
    reports = [report for report in log.memory if getattr(report, counter) is not None]
    if counter in OF_THE_FIRST_REPORT and not of_whole_run:
        first = min((report.iteration for report in reports), default=None)
        reports = [report for report in reports if report.iteration == first]
    return max(reports, key=lambda seen: (getattr(seen, counter), -seen.iteration, -seen.rank), default=None)


MAX_STEPS = 10_000
# Steps that are always kept, such as the last step of a short benchmark.
_ALWAYS_KEPT = ("0", "49")

Document = dict[str, object]


def actuals_of(log: ForeignLog) -> Document:
    """Return the log's values under Bridge's keys, without values that are missing or NaN in the log."""
    document: Document = {str(item.number - 1): _values_of(item) for item in log.iterations}
    for key, counter in MEMORY.items():
        report = bridge_report(log, counter)
        if report is not None:
            document[key] = float(f"{getattr(report, counter) / GB:.5g}")
    return document


def write_actuals(path: Path, log: ForeignLog) -> None:
    """Write the log's values, and keep the values of earlier segments in the file.

    BadRequestError if the file holds something else or cannot be written.
    """
    prior: Mapping[str, object] | None = None
    if path.exists():
        prior = _prior(path)
    text = bridge_text(downsample(merge(prior, actuals_of(log))))
    with os_errors_reported(f"{path}: cannot be written", "name a file in a folder that exists"):
        write_atomically(path, text)


def _prior(path: Path) -> Mapping[str, object] | None:
    try:
        document = read_plain(path)
        if not document:
            return None
        read_bridge(path, document)
    except BadRequestError as error:
        remedy = "with --actuals, name a new file, or a file with golden values of Megatron-Bridge"
        raise BadRequestError(error.message, remedy=remedy) from error
    return {key: value for key, value in unwrap(path, document)[1].items() if key != OF_WHOLE_RUN}


def bridge_text(document: Mapping[str, object]) -> str:
    """Return the document as the text of a file."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def merge(prior: Mapping[str, object] | None, segment: Mapping[str, object]) -> Document:
    """Merge two segments of a job. The later segment wins where both have a value."""
    merged = {**(prior or {}), **{key: value for key, value in segment.items() if value is not None}}
    return {key: merged[key] for key in (*_steps(merged), *(key for key in merged if not STEP.fullmatch(key)))}


def downsample(document: Mapping[str, object], max_steps: int = MAX_STEPS) -> Document:
    """Keep every n-th step of a document with more than ``max_steps``, and its first, its last, and step 49."""
    steps = _steps(document)
    if len(steps) <= max_steps:
        return dict(document)
    stride = math.ceil(len(steps) / max_steps)
    kept = {*steps[::stride], steps[0], steps[-1], *_ALWAYS_KEPT}
    return {key: value for key, value in document.items() if not STEP.fullmatch(key) or key in kept}


def _steps(document: Mapping[str, object]) -> list[str]:
    return sorted((key for key in document if STEP.fullmatch(key)), key=int)


def _values_of(iteration: Iteration) -> Document:
    milliseconds = None if iteration.step_time_s is None else round(iteration.step_time_s * 1000, 6)
    values = {LOSS: iteration.loss, TIME_MS: milliseconds, THROUGHPUT: iteration.tflops_per_gpu}
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
