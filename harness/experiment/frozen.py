"""The base of all values that files hold: strict and immutable."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Strict and immutable: an unknown key, a wrong type, NaN or infinity does not construct."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )
