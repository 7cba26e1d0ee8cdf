"""Validators of the models of files: what they raise for a wrong value."""

from collections.abc import Callable, Collection
from typing import TypeVar

from pydantic import AfterValidator, field_validator

from harness.errors import BadRequestError, nearest
from harness.experiment.frozen import Frozen

Keys = tuple[str | int, ...]
"""The way from the root of a document to a value: names of mappings and positions in lists."""

Read = TypeVar("Read")


class FileModel(Frozen):
    """A mapping of a file. An absent key sets nothing; a key without a value is an error."""

    @field_validator("*", mode="before")
    @classmethod
    def _has_a_value(cls, value: object) -> object:
        if value is None:
            raise RefusedError.at((), "has no value", "give it a value, or leave the key out")
        return value


class RefusedError(ValueError):
    """Problems that a validator found, each with the path from the validated value to the wrong one."""

    def __init__(self, found: list[tuple[Keys, BadRequestError]]) -> None:
        super().__init__("; ".join(error.message for _, error in found))
        self.found = found

    @classmethod
    def at(cls, keys: Keys, message: str, remedy: str) -> "RefusedError":
        """Refuse with one problem."""
        return cls([(keys, BadRequestError(message, remedy=remedy))])


def refusing(read: Callable[..., Read]) -> Callable[[object], Read]:
    """Turn ``read`` into a validator. Its BadRequestError is reported at the value."""

    def validated(value: object) -> Read:
        try:
            return read(value)
        except BadRequestError as error:
            raise RefusedError([((), each) for each in error.problems]) from error

    return validated


def one_of(known: Collection[str], message: str = "no such value") -> AfterValidator:
    """Refuse a text that is not in ``known``, and name the nearest."""

    def validated(value: str) -> str:
        if value not in known:
            raise RefusedError.at((), f"{message} '{value}'", nearest(value, known))
        return value

    return AfterValidator(validated)
