"""What a model of a file refused: each wrong value once, in words, with what to write instead."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import nearest
from harness.records.redact import redact_shapes
from harness.records.refusing import Keys, RefusedError
from harness.units import grouped

TYPES = "correct it (--set overrides a setting of a recipe or a job); recipes/README.md has the types"
_LONGEST_SHOWN = 80  # characters; messages must not print a whole wrong file
_PHRASES = {
    "string_type": ("must be text", "quote it"),
    "string_too_short": ("must not be empty", "write a text"),
    "int_type": ("must be an integer", TYPES),
    "int_from_float": ("must be an integer", TYPES),
    "float_type": ("must be a number", TYPES),
    "bool_type": ("must be true or false", "write true or false"),
    "tuple_type": ("must be a list", "write a list, as in [a, b]"),
    "too_short": ("must not be empty", "write at least one item"),
    "dict_type": ("must be a mapping", "write key: value pairs"),
    "model_type": ("must be a mapping", "write key: value pairs"),
    "model_attributes_type": ("must be a mapping", "write key: value pairs"),
    "string_pattern_mismatch": (  # every pattern of a model is that of a name
        "must be lower-case letters, digits, '.', '_' or '-', 64 at most, a letter or digit first", TYPES,
    ),
}  # fmt: skip
"""What a value must be, and the remedy, by pydantic's type of error. Pydantic's own words serve for the others."""


@dataclass(frozen=True)
class Fault:
    """One wrong value. ``keys`` lead to it; ``message`` does not contain the place."""

    keys: Keys
    message: str
    remedy: str
    is_missing: bool = False


@dataclass
class _Place:
    """A place in the data, the models that may describe it, and the ``holder`` of its value."""

    value: object
    models: list[type[BaseModel]]
    keys: Keys = ()
    holder: object = None

    @classmethod
    def of(cls, detail: ErrorDetails, model: object, data: object) -> "_Place":
        """Follow a location, past the names of a union's arms and of validators, which are no keys of the data."""
        place = cls(data, models_in(model))
        for part in detail["loc"]:
            place.enter(part)
        if detail["type"] == "missing":
            place.keys = (*place.keys, detail["loc"][-1])
        elif detail["type"].startswith("union_tag"):
            tag = detail["ctx"]["discriminator"].strip("'")
            place.keys = (*place.keys, tag)
            place.value = place.value.get(tag) if isinstance(place.value, dict) else None
        return place

    def enter(self, part: str | int) -> None:
        is_item = isinstance(self.value, tuple | list) and isinstance(part, int) and part < len(self.value)
        if not is_item and not (isinstance(self.value, dict) and part in self.value):
            return
        fields = [model.model_fields[str(part)] for model in self.models if part in model.model_fields]
        self.models = [inner for info in fields for inner in models_in(info.annotation)] or self.models
        self.keys, self.holder, self.value = (*self.keys, part), self.value, self.value[part]  # type: ignore[index]


def faults(error: ValidationError, model: type[BaseModel] | object, data: object) -> Iterator[Fault]:
    """Yield the faults of ``data``, which ``model`` refused: one for each wrong value, whatever arms a union has."""
    pairs = [(detail, _Place.of(detail, model, data)) for detail in error.errors(include_url=False)]
    found = grouped((place.keys, (detail, place)) for detail, place in pairs)
    for keys, alike in found.items():
        if any(len(keys) < len(other) and other[: len(keys)] == keys for other in found):
            continue
        details, place = [detail for detail, _ in alike], alike[0][1]
        refused = details[0].get("ctx", {}).get("error")
        if isinstance(refused, RefusedError):
            yield from (Fault((*keys, *at), each.message, each.remedy) for at, each in refused.found)
        elif details[0]["type"] in ("missing", "union_tag_not_found"):
            yield Fault(keys, "missing", f"add {keys[-1]}", is_missing=True)
        elif details[0]["type"] == "extra_forbidden":
            yield from _unknown_key(place)
        else:
            yield _wrong_value(place, details)


def _wrong_value(place: _Place, details: list[ErrorDetails]) -> Fault:
    kind, ctx = details[0]["type"], details[0].get("ctx", {})
    if kind in ("literal_error", "union_tag_invalid"):
        expected: str = ctx["expected"] if "expected" in ctx else ctx["expected_tags"]
        near = nearest(str(place.value), [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")])
        message, remedy = f"must be {expected}", near if near.startswith("did you mean") else TYPES
    else:
        phrases = [_PHRASES.get(each["type"], (_own_words(each), TYPES)) for each in details]
        message = " or ".join(dict.fromkeys(phrase for phrase, _ in phrases)).replace(" or must be ", " or ")
        remedy = phrases[0][1]
    if kind not in ("value_error", "json_invalid") or not isinstance(place.value, dict):
        message = f"{message}, is {in_words(place.value)}"
    return Fault(place.keys, message, remedy)


def _own_words(detail: ErrorDetails) -> str:
    own = detail["msg"].removeprefix("Value error, ").replace("Invalid JSON", "not JSON", 1)
    return own.replace("Input should be", "must be", 1)


def in_words(value: object) -> str:
    """Format a value for a message; cut a large one."""
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"a text of {len(value)} characters"
    kinds = {dict: "a mapping", tuple: "a list", list: "a list", type(None): "empty"}
    return kinds.get(type(value)) or redact_shapes(repr(value))


def _unknown_key(place: _Place) -> Iterator[Fault]:
    """Describe an unknown key by the models that fit the values beside it; a wrong tag is reported alone."""
    beside = place.holder
    assert isinstance(beside, dict)
    fitting = [model for model in place.models if all(beside.get(tag, value) == value for tag, value in _tags(model))]
    if fitting:
        known = dict.fromkeys(name for model in fitting for name in model.model_fields)
        yield Fault(place.keys, "no such setting", nearest(str(place.keys[-1]), known))


def _tags(model: type[BaseModel]) -> Iterator[tuple[str, object]]:
    for name, info in model.model_fields.items():
        words = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
        if len(words) == 1:
            yield name, words[0]


def models_in(annotation: object) -> list[type[BaseModel]]:
    """Return the models that an annotation names: ``MoeModel | None`` gives MoeModel."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]
