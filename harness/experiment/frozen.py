"""The base of all values that files hold: strict and immutable."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True)
class Former:
    """Marks a field that earlier versions lacked, with the value that they used.

    A fingerprint leaves the field out at this value, so that it equals the fingerprint of an earlier version.
    """

    value: object


class Frozen(BaseModel):
    """Strict and immutable: an unknown key, a wrong type, NaN or infinity does not construct."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())

    def without_former(self) -> dict[str, Any]:
        """Return the JSON form without fields at their former value (:class:`Former`)."""
        fields = self.model_dump(mode="json")
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if Former(value) in info.metadata:
                del fields[name]
            elif isinstance(value, Frozen):
                fields[name] = value.without_former()
        return fields


def former_values(model: type[Frozen], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the marked fields of ``model`` and of the models in it, by dotted path."""
    for name, info in model.model_fields.items():
        marks = [mark.value for mark in info.metadata if isinstance(mark, Former)]
        for value in marks:
            yield from _leaves(value, prefix + name)
        for section in () if marks else _sections(info.annotation):
            yield from former_values(section, f"{prefix}{name}.")


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if not isinstance(value, Frozen):
        yield path, value
        return
    for name in type(value).model_fields:
        yield from _leaves(getattr(value, name), f"{path}.{name}")


def _sections(annotation: object) -> Iterator[type[Frozen]]:
    for arm in get_args(annotation) or (annotation,):
        if isinstance(arm, type) and issubclass(arm, Frozen):
            yield arm
