"""Command lines that cannot be parsed: told as every other wrong request is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
import typer.core

from harness.errors import BadRequestError

# Which package has the class depends on the version of typer; each hands out this child of it.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


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
