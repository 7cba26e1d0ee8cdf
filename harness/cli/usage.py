"""Command lines that cannot be parsed: told as every other wrong request is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
import typer.core

from harness.errors import BadRequestError

# Which package has the class depends on the version of typer; each hands out this child of it.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


_REMOVED = {
    ("nightly", name): 'see README.md, "Slack and Prometheus": short programs send the document of `nightly --json` on'
    for name in ("--jsonl", "--prometheus", "--webhook")
}
"""Options of former releases by command, and what to do instead."""


def refuse_removed(arguments: Sequence[str]) -> None:
    """Raise BadRequestError for options that no longer exist, before anything else is read."""
    names = (argument.partition("=")[0] for argument in arguments[1:])
    for name in names:
        if remedy := _REMOVED.get((arguments[0], name)):
            raise BadRequestError(f"{arguments[0]} {name}: this option was removed", remedy=remedy)


class AskedGroup(typer.core.TyperGroup):
    """The outermost group of commands: usage errors of all leave it as BadRequestError."""

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Parse what stands before the command."""
        with _usage_errors_told():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        """Parse what stands behind it, and do it."""
        with _usage_errors_told():
            return super().invoke(ctx)


@contextmanager
def _usage_errors_told() -> Iterator[None]:
    """Messages quote what was typed, an assignment perhaps. A group without a command answers with its help, no error."""
    from harness.records.redact import redact

    try:
        yield
    except _UsageError as raised:
        error: Any = raised
        context = error.ctx
        if context is not None and error.message == context.get_help():
            raise
        remedy = f"try '{context.command_path} {context.help_option_names[0]}' for help" if context else ""
        raise BadRequestError(redact(error.format_message()), remedy=remedy) from error
