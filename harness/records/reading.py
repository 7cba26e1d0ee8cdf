"""Reads strict files as pydantic models. Every error has file, line, path and value, and what to write instead."""

import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from harness.errors import BadRequestError, Problems, nearest, os_errors_reported
from harness.records.faults import faults, in_words
from harness.records.refusing import Keys

ScalarValue = None | bool | int | float | str
PlainValue = ScalarValue | tuple["PlainValue", ...] | dict[str, "PlainValue"]

Model = TypeVar("Model", bound=BaseModel)

MAX_BYTES = 1024 * 1024


def path_text(keys: Keys) -> str:
    """Return ``points[2].recompute`` for its keys."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


@dataclass(frozen=True)
class Document:
    """A strict file: its problems are collected. ``lines``: of each key and item, by the way to it; none if unknown."""

    label: str
    value: object
    lines: Mapping[Keys, int]
    problems: Problems = field(default_factory=Problems)

    def at(self, keys: Keys) -> PlainValue:
        """Return the value at ``keys``; None if the file has none."""
        value = self.value
        for key in keys:
            if isinstance(value, tuple) and isinstance(key, int):
                value = value[key]
            else:
                value = value.get(key) if isinstance(value, dict) else None
        return value  # type: ignore[return-value]

    def line(self, keys: Keys) -> int:
        """Return the line of the key or item; if it is missing, that of its mapping."""
        return self.lines[keys] if keys in self.lines or not keys else self.line(keys[:-1])

    def place(self, keys: Keys) -> str:
        """Return ``file:line: points[2].recompute``, which opens every message."""
        where = f"{self.label}:{self.line(keys)}" if self.lines else self.label
        return f"{where}: {path_text(keys) or 'the file'}"

    def refuse(self, keys: Keys, message: str, remedy: str = "") -> None:
        """Add one problem at its place."""
        self.problems.add(f"{self.place(keys)}: {message}", remedy)

    @contextmanager
    def collecting(self, keys: Keys) -> Iterator[None]:
        """Collect a BadRequestError of the block as a problem at this place."""
        raised = Problems()
        with raised.collecting():
            yield
        for problem in raised.found:
            self.refuse(keys, problem.message, problem.remedy)

    def table(self, keys: Keys, known: Collection[str] | None = None) -> dict[str, PlainValue]:
        """Return the mapping at ``keys``, empty if there is none; other values and keys not ``known`` are problems."""
        value = self.at(keys)
        if isinstance(value, dict):
            for key in value:
                if known is not None and key not in known:
                    self.refuse((*keys, key), "no such setting", nearest(key, known))
            return value
        if keys in self.lines:
            self.refuse(keys, f"must be a mapping, is {in_words(value)}", "write key: value pairs")
        return {}

    def read(self, model: type[Model], keys: Keys = (), values: Mapping[str, object] | None = None) -> Model | None:
        """Return the value at ``keys``, or ``values``, as a model; None with every problem if the model refuses it."""
        data = self.at(keys) if values is None else dict(values)
        try:
            return model.model_validate(data)
        except ValidationError as error:
            for fault in faults(error, model, data):
                self.refuse((*keys, *fault.keys), fault.message, fault.remedy)
            return None


def read_text(path: Path, label: str, *, most_bytes: int | None = MAX_BYTES) -> str:
    """Read a file of at most ``most_bytes``. BadRequestError if it cannot be read, is no file, not UTF-8 or larger."""
    with os_errors_reported(f"{label}: cannot be read", "check the path"):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            remedy = "save its content to a file, and name that file"
            raise BadRequestError(f"{label}: a pipe or a device, not a file", remedy=remedy)
        with path.open("rb") as file:
            raw = file.read(-1 if most_bytes is None else most_bytes + 1)
    if most_bytes is not None and len(raw) > most_bytes:
        remedy = "such a file has a few KiB; is this the right file?"
        raise BadRequestError(f"{label}: larger than {most_bytes >> 20} MiB", remedy=remedy)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadRequestError(f"{label}:{line}: not UTF-8", remedy="save the file as UTF-8") from error
