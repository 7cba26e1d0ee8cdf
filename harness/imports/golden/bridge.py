"""Golden files of Megatron-Bridge."""

import re
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.imports.golden.values import ForeignGolden, GoldenStep, number, problem, shown
from harness.imports.log.values import ForeignLog, RankMemory
from harness.units import GB

LOSS, TIME_MS, THROUGHPUT = "lm loss", "elapsed time per iteration (ms)", "GPU utilization"
MAY_BE_NAN = (TIME_MS, THROUGHPUT)  # of some steps; a window that holds one is inconclusive
MEMORY = {"alloc": "allocated_bytes", "max_alloc": "max_allocated_bytes", "max_reserved": "max_reserved_bytes"}
# A number, as Megatron-Bridge passes over numbers that it does not know.
OF_WHOLE_RUN = "mbr_perf_peaks_of_whole_run"

STEP = re.compile(r"[0-9]{1,9}")
_DATE = re.compile(r"(\d{1,4})[.\-/_](\d{1,2})[.\-/_](\d{1,4})(?:\D.*)?", re.DOTALL)
_WRAPPERS = ("baseline", "current")
_MAX_KEYS = 8


def looks_like_bridge(document: Mapping[str, object]) -> bool:
    """Whether the keys are those of one of the layouts."""
    return any(name in document for name in _WRAPPERS) or _has_steps(document) or bool(_dates(document))


def read_bridge(path: Path, document: Mapping[str, object]) -> ForeignGolden:
    """The golden in ``document``. BadRequestError names the keys of all values that are none."""
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
    """The name of the layout, the flat part of the file, and what was passed over."""
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
    notes = [f"{path} holds {len(dates)} snapshots; the newest, {newest}, is read"] if len(dates) > 1 else []
    return f"snapshot {newest}", inner, notes


def _has_steps(document: Mapping[str, object]) -> bool:
    return any(STEP.fullmatch(key) for key in document)


def _dates(document: Mapping[str, object]) -> dict[str, tuple[int, int, int]]:
    """Keys that are dates, MM.DD.YY or YYYY-MM-DD, with their year, month and day."""
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
        f"{path}: no layout of golden values that is known; its keys: {keys}{more}",
        remedy="Megatron-Bridge: steps '0', '1', ... or baseline, current, MM.DD.YY around them; "
        "Megatron-LM: metrics with start_step and values",
    )


OF_THE_FIRST_REPORT = ("allocated_bytes", "max_allocated_bytes")


def bridge_report(log: ForeignLog, counter: str, *, of_whole_run: bool = False) -> RankMemory | None:
    """The worst rank's report of ``counter``; None where no rank tells it.

    Bridge stores allocated bytes of a log's first report, whichever rank printed first: here all ranks of that iteration
    are looked at. Of reserved bytes it stores the largest of all, as goldens ``of_whole_run`` do of both.
    """
    told = [one for one in log.memory if getattr(one, counter) is not None]
    if counter in OF_THE_FIRST_REPORT and not of_whole_run:
        first = min((one.iteration for one in told), default=None)
        told = [one for one in told if one.iteration == first]
    return max(told, key=lambda one: (getattr(one, counter), -one.iteration, -one.rank), default=None)
