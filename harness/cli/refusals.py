"""Tells why a command has no answer: the error, and what to type next."""

import errno
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from harness.errors import BadRequestError, ExitCode, HarnessError, ManyProblemsError, RunFailedError, closest
from harness.records.redact import redact, redact_shapes
from harness.show.page import visible

_LONG_WORD = re.compile(r"(\S{40})\S{960,}")  # typed text: no useful name or path is so long


def tell(error: HarnessError, arguments: Sequence[str]) -> None:
    """Messages quote what was typed, which logs of CI keep: without what looks like a secret."""
    problems = error.problems if isinstance(error, BadRequestError) else []
    found = [_with_commands(each, arguments) for each in problems]
    choices = problems[-1].choices if problems else ()
    error = ManyProblemsError(found) if len(found) > 1 else [error, *found][-1]
    shown: Sequence[HarnessError] = found or (error,)
    if "--json" in arguments:
        from harness.show import json

        texts, code = _texts(error), int(error.exit_code)
        legal = choices[0] if len(choices) == 1 else ()
        json.answer(json.ErrorDocument.of(**texts, errors=[*map(_texts, shown)], legal_with=legal, exit_code=code))
    for problem in shown:
        short = _LONG_WORD.sub(lambda word: f"{word[1]}... ({len(word[0])} characters)", str(problem))
        print(f"error: {visible(redact_shapes(short))}", file=sys.stderr)


def _texts(error: HarnessError) -> dict[str, str]:
    return {"error": redact_shapes(error.message), "remedy": redact_shapes(error.remedy)}


_FAULTS = (
    errno.EIO, errno.ESTALE, errno.EDQUOT, errno.ENOSPC, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EACCES,
    errno.EPERM, errno.EROFS, errno.ENOTCONN, errno.ETIMEDOUT, errno.ENXIO, errno.ENOLCK, errno.EBUSY,
)  # fmt: skip


def of_system(error: OSError, arguments: Sequence[str]) -> HarnessError:
    """Return what a fault of files or disks means for the user; raise any other error again: it is a bug."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    if error.errno == errno.ENAMETOOLONG and name:
        place = next((at for at, argument in enumerate(arguments) if argument and argument in name), 0)
        option = f"{arguments[place - 1]} " if place and arguments[place - 1].startswith("-") else ""
        message = f"{option}{name[:40]}...: {len(name)} characters are too long for a name or path"
        return BadRequestError(message, remedy="use a name of at most 255 characters, and a path of at most 4095")
    if error.errno in _FAULTS:
        remedy = "repair the file system, its quota or the permissions, and run the command again"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            remedy = "raise the limit of open files (ulimit -n), and run the command again"
        return RunFailedError(f"{name or 'a file'}: {error.strerror or error}", remedy=remedy)
    try:
        Path.cwd()
    except OSError as lost:
        message = f"the working folder: {lost.strerror}"
        return BadRequestError(message, remedy="it was deleted or cannot be read; change to another folder")
    raise error


def _with_commands(problem: BadRequestError, arguments: Sequence[str]) -> BadRequestError:
    if not problem.choices:
        return problem
    first = "copy one of these commands:" if len(problem.choices) > 1 else "this command works:"
    lines = filter(None, (problem.advice, first, *completed(arguments, problem.choices)))
    return BadRequestError(problem.message, remedy="\n  ".join(lines))


def completed(arguments: Sequence[str], choices: Sequence[Sequence[str]]) -> list[str]:
    """Return the typed command with each choice's options before a ``--``, quoted for a shell."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [shlex.join(["mbr-perf", *arguments[:end], *words, *arguments[end:]]) for words in choices]


def tell_stopped() -> None:
    """Answer Ctrl-C if there is nothing to keep."""
    command = shlex.join(["mbr-perf", *map(redact, sys.argv[1:])])
    print(f"INTERRUPTED (exit {int(ExitCode.INTERRUPTED)}): no answer\nStart again: {command}", file=sys.stderr)


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
            kind = next((kind for words, kind in _KINDS.items() if words in error.message), "")
            found.append(f"{parameter.opts[0]}: {value!r} is not {kind}" if kind else str(error.format_message()))
    remedies = [*[""] * (len(found) - 1), f"try '{ctx.command_path} {ctx.help_option_names[0]}' for help"]
    return [BadRequestError(redact(text), remedy=remedy) for text, remedy in zip(found, remedies, strict=False)]


def nearest_command(group: Any, ctx: Any, typed: str) -> str:
    """Commands of this group by name, and those of groups within it by their last word."""
    known: dict[str, list[str]] = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        known.setdefault(name, []).insert(0, name)
        for inner in getattr(command, "commands", ()):
            known.setdefault(inner, []).append(f"{name} {inner}")
    full = [words for match in closest(typed, known) for words in known[match]]
    before = f"{group.name} " if ctx.parent else ""
    return f"Did you mean {' or '.join(repr(before + words) for words in full)}?" if full else ""
