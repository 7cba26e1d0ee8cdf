"""Reading our own JSON files: one answer or one error that names the file and the key."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

from pydantic import PlainSerializer, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import BadRequestError, ManyProblemsError
from harness.experiment.gpu import Frozen
from harness.records.rank import SCHEMA_VERSION
from harness.records.redact import redact_shapes
from harness.units import counted

Document = TypeVar("Document", bound=Frozen)

Told = Annotated[str, PlainSerializer(lambda text: text or None, return_type=str | None)]
"""A text of a verdict; an empty one is null in JSON."""

_MAX_PROBLEMS = 10
_MAX_SHOWN = 60
_MAX_DEPTH = 100  # both parsers give up beyond it, at depths of their own
_KINDS = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
_TOO_DEEP = f"nested deeper than {_MAX_DEPTH} levels, as no such file is"
_STRING_OR_CONSTANT = re.compile(r'"(?:\\.|[^"\\])*"|NaN|-?Infinity')


class OtherVersionError(ManyProblemsError):
    """The file is whole, and of a format that this version does not know: another version may read it."""


class RejectedError(ManyProblemsError):
    """The file is a whole JSON object, and values in it are not accepted, maybe only by the rules of today."""


def read_document(path: Path, schema: type[Document]) -> Document:
    """The file as ``schema``. BadRequestError for a file that cannot be read, is not strict JSON, or does not fit.

    Strict: no duplicate keys, no NaN or Infinity, no unknown keys, and no schema version newer than ours; the last two
    are an OtherVersionError, other values that do not fit a RejectedError.
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
    """The files that :func:`read_document` reads, and why it does not read the others."""
    read, unread = dict[Path, Document](), dict[Path, BadRequestError]()
    for path in paths:
        try:
            read[path] = read_document(path, schema)
        except BadRequestError as error:
            unread[path] = error
    return read, unread


def _plain(path: Path, text: str) -> dict[str, object]:
    """The file as plain values, refused where json alone would pick one reading of several."""
    try:
        value = json.loads(text, object_pairs_hook=once_each, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise BadRequestError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except _ConstantError as error:
        raise BadRequestError(_told_of_constant(path, text, error.name)) from error
    except (ValueError, RecursionError) as error:
        raise BadRequestError(unreadable(path, text, error)) from error
    return an_object(path, value)


def an_object(path: Path, value: object) -> dict[str, object]:
    """The whole of a file, where it is a JSON object; else BadRequestError."""
    if isinstance(value, dict):
        return value
    raise BadRequestError(f"{path}: {_KINDS.get(type(value), 'null')}, where an object is wanted")


def unreadable(path: Path, text: str, error: ValueError | RecursionError) -> str:
    """What json, or :func:`once_each` in it, raised, for a person: with the place of a key that is there twice."""
    if isinstance(error, RecursionError):
        return f"{path}: {_TOO_DEEP}"
    if isinstance(error, _TwiceError):
        place = _place_of_twice(json.loads(text, object_pairs_hook=_Pairs))
        return f"{path}: {place}{': ' * bool(place)}{error}"
    return f"{path}: a whole number of more than {sys.get_int_max_str_digits()} digits"


def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The pairs of a JSON object; ValueError for a key that is there twice."""
    seen: dict[str, object] = {}
    for key, value in pairs:
        if key in seen:
            raise _TwiceError(f"the key {key!r} is there twice")
        seen[key] = value
    return seen


class _TwiceError(ValueError):
    """Of two values for one key, neither is the one that was meant."""


class _Pairs(list[tuple[str, object]]):
    """A JSON object with all its keys."""


def _place_of_twice(document: object) -> str:
    """Dotted keys of the first object in the file that has a key twice; empty for the whole file."""
    waiting = [("", document)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, _Pairs) and len(dict(value)) < len(value):
            return place
        inner = value if isinstance(value, _Pairs) else enumerate(value) if isinstance(value, list) else ()
        waiting += reversed([(f"{place}.{key}" if place else str(key), one) for key, one in inner])
    return ""


class _ConstantError(ValueError):
    """NaN or Infinity, which JSON does not know."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _refuse_constant(name: str) -> NoReturn:
    raise _ConstantError(name)


def _told_of_constant(path: Path, text: str, name: str) -> str:
    """``golden.json:19: metrics.tflops_per_gpu.value: NaN is not a number ...``: the first of them in the file."""
    first = next(one for one in _STRING_OR_CONSTANT.finditer(text) if not one[0].startswith('"'))
    places = _constants(json.loads(text, parse_constant=_Constant))
    where = f"{path}:{text.count(chr(10), 0, first.start()) + 1}: {next(places, 'the file')}"
    return f"{where}: {name} is not a number that anything can be judged by"


class _Constant(str):
    """NaN or Infinity where it stood, for its key."""

    __slots__ = ()


def _constants(value: object, place: str = "") -> Iterator[str]:
    """Dotted keys of the constants, in the order of the file."""
    if isinstance(value, _Constant):
        yield place or "the file"
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _constants(one, f"{place}.{key}" if place else str(key))


def _check_version(path: Path, document: dict[str, object]) -> None:
    version = document.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        newer = BadRequestError(
            f"{path}: schema_version {version} is newer than {SCHEMA_VERSION}, the newest this mbr-perf reads",
            remedy="read it with the mbr-perf that wrote it, or upgrade",
        )
        raise OtherVersionError([newer])


def _problems(path: Path, error: ValidationError) -> list[BadRequestError]:
    told = dict.fromkeys(map(_told, error.errors(include_url=False)))
    found = [BadRequestError(f"{path}: {line}") for line in told]
    rest = len(found) - _MAX_PROBLEMS
    return (
        found
        if rest <= 0
        else [*found[:_MAX_PROBLEMS], BadRequestError(f"{path}: and {counted(rest, 'more problem')}")]
    )


def _told(problem: ErrorDetails) -> str:
    """Key, what is wrong, and the value; the same for every type that a number may have."""
    if problem["type"] == "json_invalid":  # of what json itself has read: too deep, or half a surrogate pair
        return _TOO_DEEP if "recursion" in problem["msg"] else problem["msg"].replace("Invalid", "not", 1)
    place, said = problem["loc"], problem["msg"].replace("Input should be", "must be", 1).removeprefix("Value error, ")
    if place[-1:] in (("int",), ("float",)):
        place, said = place[:-1], "must be a number"
    if problem["type"] == "extra_forbidden":
        return f"{_key(place)}: no such key in this version of mbr-perf"
    value = problem["input"]
    is_shown = problem["type"] != "missing" and (value is None or isinstance(value, str | int | float))
    return f"{_key(place)}: {said}{f', is {_shown(value)}' if is_shown else ''}"


def _key(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place)) or "the file"


def _shown(value: object) -> str:
    text = redact_shapes(json.dumps(value))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
