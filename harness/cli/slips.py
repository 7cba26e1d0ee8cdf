"""Names what is wrong with a typed command line, and what was perhaps meant."""

import shlex
from typing import Any

import typer

from harness.errors import BadRequestError, closest
from harness.records.redact import redact

# By words in the messages of typer and of click.
_KINDS = {"valid integer": "a whole number", "valid number": "a number", "valid float": "a number"}


def unreadable(command: Any, ctx: Any, args: list[str]) -> list[BadRequestError]:
    """List the parameters that are missing or cannot be read; the last one names the help."""
    typed, _, _ = command.make_parser(ctx).parse_args(args=args)
    found: list[str] = []
    for parameter in command.get_params(ctx):
        value = typed.get(parameter.name)
        try:
            parameter.process_value(ctx, parameter.consume_value(ctx, typed)[0])
        except typer.BadParameter as error:
            unit = " of GiB, e.g. 45" * (parameter.metavar == "GIB")
            found.append(_why(parameter.opts[0], value, error, unit))
    remedies = [*[""] * (len(found) - 1), f"try '{ctx.command_path} {ctx.help_option_names[0]}' for help"]
    return [BadRequestError(redact(text), remedy=remedy) for text, remedy in zip(found, remedies, strict=False)]


def _why(option: str, value: Any, error: typer.BadParameter, unit: str) -> str:
    kind = next((kind for words, kind in _KINDS.items() if words in error.message), None)
    return f"{option}: {value!r} is not {kind}{unit}" if kind else str(error.format_message())


def nearest_command(group: Any, ctx: Any, typed: str) -> str:
    """Commands of this group by name, and those of groups within it by their last word."""
    known: dict[str, list[str]] = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        known.setdefault(name, []).insert(0, name)
        for inner in getattr(command, "commands", ()):
            known.setdefault(inner, []).append(f"{name} {inner}")
    full = [words for match in closest(typed, known) for words in known[match]]
    if not full and "show" in known and any(map(str.isdigit, typed)):  # no command has a digit, names of entries have
        full = [f"show {typed}"]
    before = f"{group.name} " if ctx.parent else ""
    return f"Did you mean {' or '.join(repr(before + words) for words in full)}?" if full else ""


def job_behind(command: str, typed: list[str], word: str) -> BadRequestError:
    """Return the problem of a job that stands behind an option, with the right order; or of a second job."""
    if typed[0] in (word, "--") or not typed[0].startswith("-"):
        return BadRequestError(
            redact(f"{word}: {command} takes one job"), remedy="name one file or recipe, and options"
        )
    at = len(typed) - 1 - typed[::-1].index(word)
    line = shlex.join(map(redact, [*command.split(), word, *typed[:at], *typed[at + 1 :]]))
    return BadRequestError(redact(f"{word}: the file or recipe of the job stands first"), remedy=line)


def short_option_meant(argument: str, known: list[str]) -> str:
    """Return what to type for an unknown short option, in brackets."""
    short = [name for name in known if name[:1] == "-" != name[1:2]]
    close = closest(argument, short, 3)
    if close:
        return f"(did you mean {' or '.join(close)}?)"
    if argument[:2] in short:
        return f"(write the value apart: {argument[:2]} {argument[2:]})"
    return f"(short options: {', '.join(short)})"
