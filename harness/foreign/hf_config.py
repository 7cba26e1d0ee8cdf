"""Reads a Hugging Face `config.json` strictly: typed values by key, the config class's defaults for absent keys."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from harness.errors import BadRequestError, Problems
from harness.records.reading import read_text
from harness.records.strict_json import parse_json
from harness.resolve.recipe import Setting, Value
from harness.units import shortened

_Kind = TypeVar("_Kind")

FILE = "config.json"
REMEDY = "write the value of the model's own file"


@dataclass
class HfConfig:
    """The values of a file, and of its config class where a key is absent. ``label`` opens messages.

    ``class_name`` and ``defaults`` belong to the architecture. ``read`` collects the keys that a reader asked for, so
    that no key is ignored by accident. Problems are collected, and reading goes on with the default.
    """

    label: str
    values: Mapping[str, object]
    class_name: str = ""
    defaults: Mapping[str, object] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    read: set[str] = field(default_factory=set)

    def of(self, key: str) -> object:
        """Return the value of a key, a null included; the default of the config class if the key is absent."""
        self.read.add(key)
        return self.values[key] if key in self.values else self.defaults.get(key)

    def whole(self, key: str) -> int | None:
        """Return a whole number; 500000.0 is one. None for null."""
        value = self.of(key)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return self._one(key, int, "a whole number")

    def size(self, key: str) -> int:
        """Return a whole number from 1; for a wrong value, add a problem and return 1."""
        value = self.whole(key)
        if value is not None and value >= 1:
            return value
        if value is not None or self.of(key) is None:
            self.refuse(key, f"must be a whole number from 1, is {_shown(self.of(key))}", REMEDY)
        return 1

    def number(self, key: str) -> float | None:
        """Return a number. None for null."""
        value = self.of(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return self._one(key, float, "a number")

    def flag(self, key: str) -> bool:
        """Return true or false; null is false."""
        return bool(self._one(key, bool, "true or false"))

    def text(self, key: str) -> str | None:
        """Return a text. None for null."""
        return self._one(key, str, "a text")

    def table(self, key: str) -> "HfConfig":
        """Return the object of a key as a config of its own, whose keys are ``key.inner``; empty for null."""
        inner = {f"{key}.{name}": each for name, each in (self._one(key, dict, "an object") or {}).items()}
        return HfConfig(self.label, inner, self.class_name, {}, self.problems)

    def items(self, key: str) -> tuple[object, ...] | None:
        """Return a list. None for null."""
        value = self._one(key, list, "a list")
        return None if value is None else tuple(value)

    def _one(self, key: str, kind: type[_Kind], what: str) -> _Kind | None:
        """Return the value if it is of the kind; None for null. For another kind, add a problem and return None."""
        value = self.of(key)
        if value is None or (isinstance(value, kind) and isinstance(value, bool) == (kind is bool)):
            return value
        self.refuse(key, f"must be {what}, is {_shown(value)}", REMEDY)
        return None

    def refuse(self, key: str, message: str, remedy: str) -> None:
        """Add a problem at a key."""
        self.problems.add(f"{self.label}: {key}: {message}", remedy)

    def source(self, *keys: str) -> str:
        """Return ``config.json: hidden_size``, with a hint if the config class's default replaces absent keys."""
        absent = "" if any(key in self.values for key in keys) else f" (absent: default of {self.class_name})"
        return f"{self.label}: {', '.join(keys)}{absent}"

    def setting(self, value: Value, *keys: str, note: str = "") -> Setting:
        """Return a setting whose source names the keys it was read from."""
        return Setting(value, self.source(*keys), note=note)

    def taken(self, read: Callable[[str], Value], key: str) -> Setting:
        """Return a setting with what ``read`` makes of its key."""
        return self.setting(read(key), key)

    def refuse_unread(self, harmless: Collection[str]) -> None:
        """Refuse every key that no reader asked for and that is not known to be harmless, unless it is off or empty."""
        for key, value in self.values.items():
            if key not in self.read and key not in harmless and value not in (None, False, 0, "", [], {}):
                self.refuse(
                    key, f"{_shown(value)}: mbr-perf does not know the effect of this key",
                    "delete the key from a copy of the file if it changes neither memory nor time",
                )  # fmt: skip


def read_config(path: Path, label: str) -> HfConfig:
    """Read the file, or `config.json` of a folder. BadRequestError if it is not one strict JSON object."""
    if path.is_dir():
        path, label = path / FILE, f"{label.rstrip('/')}/{FILE}"
    if not path.exists():
        raise BadRequestError(
            f"{label}: no such file", remedy=f"give the {FILE} of a model, or its folder: mbr-perf downloads no models"
        )
    text = read_text(path, label).removeprefix("\ufeff")
    try:
        return HfConfig(label, parse_json(text, label))
    except BadRequestError as error:
        raise BadRequestError(error.message, remedy="give a model's config.json, with every key once") from error


def _shown(value: object) -> str:
    return shortened(json.dumps(value))
