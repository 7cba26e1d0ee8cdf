"""The `golden promote` command."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion
from harness.cli.commands import takes
from harness.cli.options import GoldenDir, Json, Results, flag, option, options

if TYPE_CHECKING:
    from harness.golden.promotions import Candidate, LeftOut
    from harness.records.run import RunRecord


Author = Annotated[
    str | None, typer.Option("--author", metavar="NAME", help="Your name. Default: git's user.name, else the OS user.")
]


# fmt: off
@options()
class PromoteOptions:
    """What to promote, by whom and why, and what to print."""

    what: Annotated[list[str], typer.Argument(metavar="RUN|NIGHT", autocompletion=completion.stored,
        help="Folders or ids of runs that repeat one setting; or one night, with --case or --every.")]
    reason: Annotated[str, option("TEXT", "Why these values become the golden.")]
    case: Annotated[list[str] | None, option("NAME", "Promote this case of the night. Repeatable.")] = None
    every: Annotated[bool, flag("Promote every case of the night, except those that failed as the suite "
        "expects.")] = False
    keep_going: Annotated[bool, flag("Write the other cases if some are refused.")] = False
    author: Author = None
    replace_other: Annotated[bool, flag("Replace a golden of other settings that has the same file name.")] = False
    accept_spread: Annotated[bool, flag("Promote although the runs vary by more than half the threshold.")] = False
    dryrun: Annotated[bool, flag("Print what would change; write no golden.", "-d")] = False
    golden_dir: GoldenDir = None
    results_dir: Results = None
    as_json: Json = False
# fmt: on


@takes(PromoteOptions)
def promote(asked: PromoteOptions) -> None:
    """Write golden values from runs, or from a night's cases, and print what changes.

    Refuses failed, suspect, short, unfinished, replayed or mixed runs, runs of a night that is still running, and
    repeats, or steps of a single run, that vary by more than half the golden's threshold. If a case of a night is
    refused, writes nothing without --keep_going.
    """
    from harness.golden.promotions import prepare, promotions_page
    from harness.golden.show import PromotedDocument
    from harness.records.goldens import writable_golden_dir, write_golden
    from harness.show.answer import answer

    folder = writable_golden_dir(asked.golden_dir)
    candidates, left_out = _candidates(asked)
    found = prepare(candidates, folder, left_out, is_written=not asked.dryrun)
    found.require(keep_going=asked.keep_going)
    for new in () if asked.dryrun else found.promoted:
        write_golden(folder, new.spec, new.golden, new.path)
    is_alone = not (asked.case or asked.every)
    document = PromotedDocument.of(found.promoted[0], is_written=found.is_written) if is_alone else found
    answer(lambda: document, lambda: promotions_page(found), as_json=asked.as_json)


def _candidates(asked: PromoteOptions) -> "tuple[list[Candidate], list[LeftOut]]":
    from harness.errors import BadRequestError, Problems
    from harness.golden.promotions import Candidate, night_candidates, require_ended_nights
    from harness.judge.promotion import PromotionOptions
    from harness.records.night import read_night

    options = PromotionOptions(
        reason=asked.reason,
        author=author_or_default(asked.author),
        now=datetime.now(UTC),
        replace_other=asked.replace_other,
        accept_spread=asked.accept_spread,
    )
    if not (asked.case or asked.every):
        problems = Problems()
        runs = [problems.tried(partial(_run, reference, asked.results_dir)) for reference in asked.what]
        problems.raise_if_any()
        require_ended_nights(asked.what, asked.results_dir)
        return [Candidate("", tuple(filter(None, runs)), options)], []
    if len(asked.what) > 1 or (asked.case and asked.every):
        message = "--case and --every exclude each other, and need exactly one night"
        raise BadRequestError(message, remedy="name one night and one of them")
    night = read_night(asked.what[0], asked.results_dir)
    return night_candidates(night, asked.case or (), options)


def _run(reference: str, results: Path | None) -> "RunRecord":
    from harness.errors import BadRequestError
    from harness.records.store import read_run

    try:
        return read_run(reference, results)
    except BadRequestError as error:
        remedy = f"{error.remedy}; of a night, choose cases with --case NAME, or all with --every"
        raise BadRequestError(error.message, remedy=remedy) from error


def author_or_default(author: str | None) -> str:
    """Return ``author``, else git's user, else the system's; empty, which promotion refuses, if there is none."""
    import getpass

    from harness.measure.provenance import git

    try:
        return git(Path(), "config", "user.name") or getpass.getuser() if author is None else author
    except (KeyError, OSError):  # a container may run as a user that its passwd file lacks
        return ""
