"""Reads mbr-perf's JSON files strictly."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from harness.errors import BadRequestError, ManyProblemsError
from harness.records.faults import faults, in_words
from harness.records.reading import Document, Model, read_text
from harness.records.refusing import Keys

_MAX_PROBLEMS = 10  # a program wrote the file


def read_document(path: Path, schema: type[Model]) -> Model:
    """Read a JSON file as ``schema``. BadRequestError if it cannot be read, or if its values do not fit."""
    return parse_document(read_text(path, str(path), most_bytes=None), str(path), schema)


def parse_document(text: str, label: str, schema: type[Model]) -> Model:
    """Read the JSON in ``text`` as :func:`read_document` does; ``label`` names it in errors."""
    data = parse_json(text, label)
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        from harness.records.strict_yaml import parse_yaml

        lines: Mapping[Keys, int] = {}
        with suppress(BadRequestError):
            lines = parse_yaml(text, "", by_pyyaml=True).lines
        file = Document(label, data, lines)
        for fault in faults(error, schema, data):
            file.refuse(fault.keys, fault.message, fault.remedy if fault.remedy.startswith("did you mean") else "")
        raise ManyProblemsError(file.problems.found[:_MAX_PROBLEMS]) from error


def read_each(paths: Iterable[Path], schema: type[Model]) -> tuple[dict[Path, Model], dict[Path, BadRequestError]]:
    """Read every file with :func:`read_document`. Return the documents and the errors by path."""
    read, unread = dict[Path, Model](), dict[Path, BadRequestError]()
    for path in paths:
        try:
            read[path] = read_document(path, schema)
        except BadRequestError as error:
            unread[path] = error
    return read, unread


def read_lines(path: Path, schema: type[Model]) -> tuple[tuple[Model, ...], int]:
    """Read a JSON object a line, none without a file; count invalid lines (a kill cuts the last line short)."""
    read, bad = [], 0
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            read.append(schema.model_validate_json(line))
        except ValidationError:
            bad += 1
    return tuple(read), bad


def parse_json(text: str, label: str) -> dict[str, object]:
    """Read the JSON object in ``text``; schemas refuse NaN and Infinity. BadRequestError for other text."""
    try:
        value = json.loads(text, object_pairs_hook=_once_each)
    except json.JSONDecodeError as error:
        raise BadRequestError(f"{label}:{error.lineno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise BadRequestError(f"{label}: nested too deeply") from error
    except ValueError as error:
        raise BadRequestError(f"{label}: {error}") from error
    if not isinstance(value, dict):
        raise BadRequestError(f"{label}: must be an object, is {in_words(value)}")
    return value


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {next(name for name in names if names.count(name) > 1)!r}")
    return table
