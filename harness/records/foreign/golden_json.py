"""Golden files of others as plain JSON: one reading, or an error that names the file and the key."""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from harness.errors import BadRequestError, raise_all
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
