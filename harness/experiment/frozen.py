"""The base of all values that files hold: strict and immutable."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1


class Frozen(BaseModel):
    """Strict and immutable: an unknown key, a wrong type, NaN or infinity does not construct."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )


class Recorded(Frozen):
    """What a whole file holds, or a line of it."""

    schema_version: Annotated[int, Field(ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
