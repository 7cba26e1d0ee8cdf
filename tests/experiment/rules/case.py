"""The words of a case of the rule table."""

from typing import Any, NamedTuple


class Case(NamedTuple):
    """``breaks`` makes a legal request of ``kind`` violate ``rule``; ``keeps``, on top of it, repairs that."""

    rule: str
    severity: str
    kind: str
    breaks: dict[str, Any]
    keeps: dict[str, Any]


def breaks(**changes: Any) -> dict[str, Any]:
    """Changes to a legal request that violate a rule."""
    return changes


def keeps(**changes: Any) -> dict[str, Any]:
    return changes


FULL_ENV = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
