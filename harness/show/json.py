"""JSON documents: types whose fields are the keys, and which read their values from verdicts by name."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import to_jsonable_python

SCHEMA_VERSION = 1

Text = Annotated[str | None, BeforeValidator(lambda text: text or None)]
"""A text of a verdict; an empty one is null."""
Refusing = Annotated[tuple[str, ...], BeforeValidator(lambda found: tuple(each.id for each in found if each.blocks))]
"""The ids of those findings of rules that refuse a request."""


class Shown(BaseModel):
    """A part of a document: every field has the value of the attribute of its name, or of the path of :func:`at`."""

    model_config = ConfigDict(frozen=True, from_attributes=True, protected_namespaces=(), defer_build=True)

    @classmethod
    def of(cls, *values: object, **more: object) -> Self:
        """Read from ``more``, then from the first of ``values`` that has the attribute."""
        return cls.model_validate(_Joined(values, more))


class Document(Shown):
    """What a command prints with ``--json``. Keys only grow."""

    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return the keys and values that ``--json`` prints."""
        found: dict[str, Any] = json.loads(text(self))
        return found


class ProblemRow(Shown):
    """One problem of a request, and what to do about it."""

    error: str
    remedy: str


class ErrorDocument(Document):
    """Any command that ends with an error; ``errors`` has each of its problems."""

    error: str
    remedy: str
    errors: tuple[ProblemRow, ...]
    legal_with: tuple[str, ...]
    exit_code: int


class _Joined:
    def __init__(self, values: tuple[object, ...], more: Mapping[str, object]) -> None:
        self._values, self._more = values, more

    def __getattr__(self, name: str) -> object:
        if name in self._more:
            return self._more[name]
        for value in self._values:
            if hasattr(value, name):
                return getattr(value, name)
        raise AttributeError(name)


def at(*path: str | int, **options: Any) -> Any:
    """Return a field whose value is the attribute at ``path``; a path of several steps is null where one is None."""
    if len(path) > 1:
        options = {"default": None, **options}
    return Field(validation_alias=AliasPath(*path), **options)  # type: ignore[arg-type]


def text(document: Shown) -> str:
    """Return the document as it is printed. Strict JSON has neither NaN nor infinity: they are null."""
    dumped = document.model_dump(mode="json", by_alias=True, warnings=False)
    finite = to_jsonable_python(dumped, inf_nan_mode="null")
    return json.dumps(finite, indent=2, ensure_ascii=False)  # to_json would refuse a file's name that is not UTF-8


def answer(document: Shown) -> None:
    """Print the document on stdout."""
    print(text(document))  # noqa: T201 (the answer)


class _Schema(GenerateJsonSchema):
    """Every key of a document is there, so that all are required."""

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ARG002, FBT001 (as pydantic calls it)
        return True


def schema(kind: Any, title: str, description: str) -> JsonSchemaValue:
    """Return the JSON Schema of a document's type, or of a union of them; later releases with more keys fit it, too."""
    found = TypeAdapter(kind).json_schema(mode="serialization", schema_generator=_Schema)
    about = {"$schema": _Schema.schema_dialect, "title": title, "description": description}
    opened: JsonSchemaValue = _open({key: value for key, value in found.items() if key not in about})
    return about | opened


def _open(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _open(each) for key, each in value.items() if (key, each) != ("additionalProperties", False)}
    return [_open(each) for each in value] if isinstance(value, list) else value
