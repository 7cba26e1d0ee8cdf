"""Turns dataclasses of options into command-line options, so that a command receives whole values.

A field is ``name: Annotated[type, typer.Option("--name", ...)] = default``. Commands that take the same group share its
options, its help and its spelling.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


def takes(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate ``command(group_a, group_b, ...)`` so that typer sees the fields of all groups as its options."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**options: Any) -> None:
            values = [group(**{f.name: options[f.name] for f in fields(group)}) for group in groups]
            command(*values)

        parameters, hints = [], {}
        for group in groups:
            group_hints = get_type_hints(group, include_extras=True)
            for f in fields(group):
                default = inspect.Parameter.empty if f.default is MISSING else f.default
                hints[f.name] = group_hints[f.name]
                parameters.append(
                    inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[f.name])
                )
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = hints
        call.__doc__, call.__name__ = command.__doc__, command.__name__
        return call

    return decorate
