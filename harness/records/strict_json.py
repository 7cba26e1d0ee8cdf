"""Reads mbr-perf's JSON files strictly. Errors name the file and the key."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import PlainSerializer, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import BadRequestError, ManyProblemsError
from harness.experiment.frozen import Frozen
from harness.records.rank import SCHEMA_VERSION
from harness.records.redact import redact_shapes
from harness.units import counted

Document = TypeVar("Document", bound=Frozen)

OptionalText = Annotated[str, PlainSerializer(lambda text: text or None, return_type=str | None)]
"""A text that becomes null in JSON when it is empty."""

_MAX_PROBLEMS = 10
_MAX_SHOWN = 60
_MAX_DIGITS = 30  # the largest real value, the FLOPs of a step, has at most 25
_MAX_DEPTH = 100  # json and pydantic have other, larger limits
_KINDS = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
_TOO_DEEP = f"nested deeper than {_MAX_DEPTH} levels"
_STRING_OR_NUMBER = re.compile(r'"(?:\\.|[^"\\])*"|NaN|-?Infinity|-?[0-9][0-9.eE+-]*')


class OtherVersionError(ManyProblemsError):
    """The file is whole, but this version does not know its format. Another version may read it."""


class RejectedError(ManyProblemsError):
    """The file is a whole JSON object, but this version does not accept some of its values."""


def read_document(path: Path, schema: type[Document]) -> Document:
    """Read the file as ``schema``. BadRequestError if it cannot be read, is not strict JSON, or does not fit.

    Strict: no duplicate keys, no NaN or Infinity, no unknown keys, no newer schema version. Unknown keys and newer
    versions raise OtherVersionError; other values that do not fit raise RejectedError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{path}: cannot be read: {error}") from error
    _check_version(path, _plain(path, text))
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        problems = _problems(path, error)
        if any(problem["type"] == "extra_forbidden" for problem in error.errors(include_url=False)):
            raise OtherVersionError(problems) from error
        raise RejectedError(problems) from error


def read_each(
    paths: Iterable[Path], schema: type[Document]
) -> tuple[dict[Path, Document], dict[Path, BadRequestError]]:
    """Read every file with :func:`read_document`. Return the documents and the errors by path."""
    read, unread = dict[Path, Document](), dict[Path, BadRequestError]()
    for path in paths:
        try:
            read[path] = read_document(path, schema)
        except BadRequestError as error:
            unread[path] = error
    return read, unread


def _plain(path: Path, text: str) -> dict[str, object]:
    """Parse the file to plain values. Refuse text that json would accept although it is ambiguous."""
    try:
        value = json.loads(text, object_pairs_hook=once_each, parse_constant=_refuse_constant, parse_int=_bounded)
    except json.JSONDecodeError as error:
        raise BadRequestError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except _NumberError as error:
        remedy = "correct the number, or restore the file from a backup"
        raise BadRequestError(_number_text(path, text, error), remedy=remedy) from error
    except (ValueError, RecursionError) as error:
        raise BadRequestError(unreadable(path, text, error)) from error
    return an_object(path, value)


def an_object(path: Path, value: object) -> dict[str, object]:
    """Return the value if it is a JSON object; else raise BadRequestError."""
    if isinstance(value, dict):
        return value
    raise BadRequestError(f"{path}: must be an object, is {_KINDS.get(type(value), 'null')}")


def unreadable(path: Path, text: str, error: ValueError | RecursionError) -> str:
    """Describe an error of json or :func:`once_each`, with the place of a duplicate key."""
    if isinstance(error, RecursionError):
        return f"{path}: {_TOO_DEEP}"
    if isinstance(error, _TwiceError):
        place = _place_of_twice(_parsed_again(text, object_pairs_hook=_Pairs, parse_int=str))
        return f"{path}: {place}{': ' * bool(place)}{error}"
    return f"{path}: a whole number of more than {sys.get_int_max_str_digits()} digits"


def _parsed_again(text: str, **hooks: Any) -> object:
    """Parse the text to find the place of an error; None if it has other errors after that place."""
    try:
        return json.loads(text, **hooks)
    except (ValueError, RecursionError):
        return None


def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the pairs of a JSON object as a dict; ValueError for a duplicate key."""
    seen: dict[str, object] = {}
    for key, value in pairs:
        if key in seen:
            raise _TwiceError(f"duplicate key {key!r}")
        seen[key] = value
    return seen


class _TwiceError(ValueError):
    """A key has two values, so that the intended value is unknown."""


class _Pairs(list[tuple[str, object]]):
    """A JSON object with all its keys."""


def _place_of_twice(document: object) -> str:
    """Return the dotted path of the first object with a duplicate key; empty for the top level."""
    places = (place for place, value in _walk(document) if isinstance(value, _Pairs) and len(dict(value)) < len(value))
    return next(places, "")


def _walk(document: object) -> Iterator[tuple[str, object]]:
    """Yield every value with its dotted key, in the order of the file; the key of the document is empty."""
    waiting = [("", document)]
    while waiting:
        place, value = waiting.pop()
        yield place, value
        inner: Iterable[tuple[object, object]] = ()
        if isinstance(value, dict):
            inner = value.items()
        elif isinstance(value, list):
            inner = value if isinstance(value, _Pairs) else enumerate(value)
        waiting += reversed([(f"{place}.{key}" if place else str(key), item) for key, item in inner])


class _NumberError(ValueError):
    """The file has NaN, Infinity or an integer that is too long. ``written``: the number as it is in the file."""

    def __init__(self, written: str, why: str) -> None:
        super().__init__(why)
        self.written = written


def _refuse_constant(name: str) -> NoReturn:
    raise _NumberError(name, f"{name} is not a number")


def _bounded(written: str) -> int:
    """Return the integer. _NumberError for more than 30 digits, because a later conversion to float could overflow."""
    num_digits = len(written.removeprefix("-"))
    if num_digits > _MAX_DIGITS:
        shown = f"{written[:_MAX_DIGITS]}..."
        raise _NumberError(written, f"{shown} has {num_digits} digits, at most {_MAX_DIGITS} are allowed")
    return int(written)


def _number_text(path: Path, text: str, error: _NumberError) -> str:
    """Describe a refused number: ``golden.json:19: metrics.tflops_per_gpu.value: NaN is not a number``."""
    first = next(match for match in _STRING_OR_NUMBER.finditer(text) if match[0] == error.written)
    document = _parsed_again(text, parse_constant=_Number, parse_int=_Number)
    found = (key for key, value in _walk(document) if isinstance(value, _Number) and value == error.written)
    line = text.count("\n", 0, first.start()) + 1
    return ": ".join((f"{path}:{line}", *(key or "the file" for key in islice(found, 1)), str(error)))


class _Number(str):
    """Stands for a number as it is in the file, to find its key."""

    __slots__ = ()


def _check_version(path: Path, document: dict[str, object]) -> None:
    version = document.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        newer = BadRequestError(
            f"{path}: schema_version {version} is newer than {SCHEMA_VERSION}, the newest that this mbr-perf reads",
            remedy="read it with the mbr-perf that wrote it, or upgrade",
        )
        raise OtherVersionError([newer])
    if isinstance(version, int) and version < 1:
        raise BadRequestError(f"{path}: schema_version {version}: the first version is 1")


def _problems(path: Path, error: ValidationError) -> list[BadRequestError]:
    lines = dict.fromkeys(map(_problem_text, error.errors(include_url=False)))
    found = [BadRequestError(f"{path}: {line}") for line in lines]
    rest = len(found) - _MAX_PROBLEMS
    return (
        found
        if rest <= 0
        else [*found[:_MAX_PROBLEMS], BadRequestError(f"{path}: and {counted(rest, 'more problem')}")]
    )


def _problem_text(problem: ErrorDetails) -> str:
    """Describe a problem by key, reason and value; the same for every type of number."""
    if problem["type"] == "json_invalid":  # pydantic rejects what json accepted: too deep, or half a surrogate pair
        return _TOO_DEEP if "recursion" in problem["msg"] else problem["msg"].replace("Invalid", "not", 1)
    place, reason = (
        problem["loc"],
        problem["msg"].replace("Input should be", "must be", 1).removeprefix("Value error, "),
    )
    if problem["type"] == "value_error" and not place:  # the check of a whole document names the key itself
        return reason
    if place[-1:] in (("int",), ("float",)):
        place, reason = place[:-1], "must be a number"
    if problem["type"] == "extra_forbidden":
        return f"{_key(place)}: no such key in this version of mbr-perf"
    value = problem["input"]
    is_shown = problem["type"] != "missing" and (value is None or isinstance(value, str | int | float))
    return f"{_key(place)}: {reason}{f', is {_shown(value)}' if is_shown else ''}"


def _key(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place)) or "the file"


def _shown(value: object) -> str:
    text = redact_shapes(json.dumps(value))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
