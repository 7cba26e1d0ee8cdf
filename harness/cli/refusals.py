"""Tells why a command has no answer: the error, and what to type next."""

import errno
import json
import re
import shlex
import sys
from collections.abc import Sequence

from harness.errors import BadRequestError, ExitCode, HarnessError, SeveralMatchError
from harness.records.redact import redact, redact_shapes
from harness.show.page import visible

_LONG_WORD = re.compile(r"(\S{40})\S{960,}")  # typed text: no useful name or path is so long


def tell(error: HarnessError, arguments: Sequence[str]) -> None:
    """Messages quote what was typed, which logs of CI keep: without what looks like a secret."""
    if isinstance(error, SeveralMatchError):
        error.remedy = "\n  ".join(["copy one of these commands:", *_completed(arguments, error.choices)])
    if "--json" in arguments:
        document = {"schema_version": 1, "error": redact_shapes(error.message), "remedy": redact_shapes(error.remedy),
                    "exit_code": int(error.exit_code)}  # fmt: skip
        print(json.dumps(document, indent=2))
    for problem in error.problems if isinstance(error, BadRequestError) else (error,):
        short = _LONG_WORD.sub(lambda word: f"{word[1]}... ({len(word[0])} characters)", str(problem))
        print(f"error: {visible(redact_shapes(short))}", file=sys.stderr)


def too_long(error: OSError, arguments: Sequence[str]) -> HarnessError:
    """Return the problem of an argument that is too long for the name of a file; raise any other error again."""
    name = str(error.filename or "")
    if error.errno != errno.ENAMETOOLONG or not name:
        raise error
    place = next((at for at, argument in enumerate(arguments) if argument and argument in name), None)
    before = arguments[place - 1] if place else ""
    option = f"{before} " if before.startswith("-") else ""
    return BadRequestError(
        f"{option}{name[:40]}...: {len(name)} characters are too long for a name or path",
        remedy="a file or run has a name of at most 255 characters, and a path of at most 4095",
    )


def _completed(arguments: Sequence[str], choices: Sequence[Sequence[str]]) -> list[str]:
    """Return the typed command with each choice's options before a ``--``, quoted for a shell."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [shlex.join(["mbr-perf", *arguments[:end], *words, *arguments[end:]]) for words in choices]


def tell_stopped() -> None:
    """Answer Ctrl-C if there is nothing to keep."""
    print(f"INTERRUPTED (exit {int(ExitCode.INTERRUPTED)}): no answer", file=sys.stderr)
    print(f"Start again: {shlex.join(['mbr-perf', *map(redact, sys.argv[1:])])}", file=sys.stderr)
