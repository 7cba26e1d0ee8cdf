"""Reads a Hugging Face `config.json` strictly, as values by key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from harness.errors import BadRequestError
from harness.foreign.words import Given, Words
from harness.records.reading import PlainValue, read_text
from harness.records.strict_json import parse_json
from harness.records.strict_yaml import plain

FILE = "config.json"
_LANGUAGE = ("text_config", "llm_config", "language_config")


@dataclass
class HfConfig(Words):
    """The values of a file, and defaults of absent keys. ``class_name``: its class, with ``keys`` and defaults.

    ``part``: what is read of a model of several modalities.
    """

    class_name: str = ""
    part: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)


def read_config(path: Path, label: str) -> HfConfig:
    """Read the file, or `config.json` of a folder. BadRequestError if it is not one strict JSON object."""
    if path.is_dir():
        path, label = path / FILE, f"{label.rstrip('/')}/{FILE}"
    if not path.exists():
        raise BadRequestError(
            f"{label}: no such file", remedy=f"give the {FILE} of a model, or its folder: mbr-perf downloads no models"
        )
    content = read_text(path, label).removeprefix("\ufeff")
    try:
        values = plain(parse_json(content, label))
    except BadRequestError as error:
        raise BadRequestError(error.message, remedy="give a model's config.json, with every key once") from error
    values, part = _language_model(values)
    config = HfConfig(label, part=part)
    for key, value in values.items():
        config.given[key] = Given(value, f"{label}: {key}")
        for name, each in value.items() if isinstance(value, dict) else ():
            config.around[f"{key}.{name}"] = Given(each, f"{label}: {key}.{name}")
    return config


def _language_model(values: dict[str, PlainValue]) -> tuple[dict[str, PlainValue], str]:
    inner = next((key for key in _LANGUAGE if isinstance(values.get(key), dict)), None)
    if inner is None:
        return values, ""
    others = [key for key in values if key.endswith("_config") and key not in (inner, "quantization_config")]
    kept = {key: values[key] for key in ("tie_word_embeddings", "quantization_config") if key in values}
    part = f"{inner} is read, the language model without {', '.join(others) or 'other parts'}"
    return kept | cast(dict[str, PlainValue], values[inner]), part
