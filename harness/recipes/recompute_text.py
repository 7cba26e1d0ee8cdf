"""Recompute policies from names a person wrote: modules are checked, near misses are named."""

from collections.abc import Sequence

from harness.errors import BadRequestError
from harness.recipes.problems import Problems, nearest
from harness.spec.recompute import (
    MODULES,
    FullRecompute,
    NoRecompute,
    SelectiveRecompute,
    parse_recompute,
)

Policy = NoRecompute | SelectiveRecompute | FullRecompute


def selective(names: Sequence[str], where: str) -> SelectiveRecompute:
    """A selective policy of one or more modules; ``where`` opens every message.

    Raises BadRequestError for an unknown, empty or repeated name, all at once.
    """
    problems = Problems()
    modules = tuple(name.strip() for name in names)
    for name in dict.fromkeys(modules):
        if not name:
            problems.add(f"{where}: an empty module name", "write 'none' for no recompute")
        elif name not in MODULES:
            problems.add(f"{where}: unknown recompute module '{name}'", nearest(name, MODULES))
        elif modules.count(name) > 1:
            problems.add(f"{where}: module '{name}' is named twice", "name each module once")
    problems.raise_if_any()
    return SelectiveRecompute(modules=modules)


def policy_from_text(text: str, where: str) -> Policy:
    """The stable spelling: ``none``, ``mlp,core_attn``, ``full:uniform:1``, ``full:block:4``."""
    text = text.strip()
    if text == "none":
        return NoRecompute()
    if text != "full" and not text.startswith("full:"):
        return selective(text.split(","), where)
    try:
        return parse_recompute(text)
    except ValueError as error:
        raise BadRequestError(
            f"{where}: {error}", remedy="write full:uniform:1, full:block:4, a module list or none"
        ) from error
