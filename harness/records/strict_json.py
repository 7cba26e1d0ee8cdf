"""Reading our own JSON files: one answer or one error that names the file and the key."""

import json
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import ValidationError

from harness.errors import BadRequestError, ManyProblemsError
from harness.records.rank import SCHEMA_VERSION
from harness.spec.frozen import Frozen

Document = TypeVar("Document", bound=Frozen)

_MAX_PROBLEMS = 10


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


def _plain(path: Path, text: str) -> dict[str, object]:
    """The file as plain values, refused where json alone would pick one reading of several."""
    try:
        value = json.loads(text, object_pairs_hook=once_each, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise BadRequestError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise BadRequestError(f"{path}: holds {type(value).__name__}, not an object")
    return value


def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The pairs of a JSON object; ValueError for a key that is there twice."""
    seen: dict[str, object] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"the key {key!r} is there twice")
        seen[key] = value
    return seen


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that anything can be judged by")


def _check_version(path: Path, document: dict[str, object]) -> None:
    version = document.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        newer = BadRequestError(
            f"{path}: schema_version {version} is newer than {SCHEMA_VERSION}, the newest this mbr-perf reads",
            remedy="read it with the mbr-perf that wrote it, or upgrade",
        )
        raise OtherVersionError([newer])


def _problems(path: Path, error: ValidationError) -> list[BadRequestError]:
    found = [
        BadRequestError(f"{path}: {'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg']}")
        for problem in error.errors(include_url=False)
    ]
    rest = len(found) - _MAX_PROBLEMS
    return found if rest <= 0 else [*found[:_MAX_PROBLEMS], BadRequestError(f"{path}: and {rest} more problems")]
