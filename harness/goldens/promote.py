"""The `golden promote` command: who promotes, and the note left as Markdown."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.asking import completion
from harness.asking.options import GoldenDir, Json, Results, takes

if TYPE_CHECKING:
    from harness.goldens.plan import Candidate, Promotions
    from harness.records.run import RunRecord
    from harness.showing.page import Page


@dataclass(frozen=True, kw_only=True)
class PromoteOptions:
    """What to promote, by whom and why, and what to say of it."""

    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|NIGHT",
            autocompletion=completion.stored,
            help="Run folders or ids, repeats of one setting; or one night with --case or --every.",
        ),
    ]
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why this becomes the value to hold others to.")
    ]
    case: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="This case of the night. Repeatable.")
    ] = None
    every: Annotated[
        bool,
        typer.Option("--every", help="Every case of the night but those that failed as the suite expects."),
    ] = False
    keep_going: Annotated[
        bool, typer.Option("--keep_going", help="Write the cases that are fine although others are refused.")
    ] = False
    author: Annotated[
        str | None, typer.Option("--author", metavar="NAME", help="Default: git's user.name, else the OS user.")
    ] = None
    replace_other: Annotated[
        bool, typer.Option("--replace_other", help="Replace a golden of other settings that has the same file name.")
    ] = False
    accept_spread: Annotated[
        bool,
        typer.Option(
            "--accept_spread", help="Promote although the runs spread by more than half the threshold; recorded."
        ),
    ] = False
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="METRIC", help="Store this metric only, e.g. peak_allocated_bytes. Repeatable."),
    ] = None
    markdown: Annotated[
        str | None,
        typer.Option("--markdown", metavar="FILE", help="The change as Markdown for the pull request; - is stdout."),
    ] = None
    dryrun: Annotated[bool, typer.Option("-d", "--dryrun", help="Print what would change; write no golden.")] = False
    golden_dir: GoldenDir = None
    results_dir: Results = None
    as_json: Json = False


@takes(PromoteOptions)
def promote(asked: PromoteOptions) -> None:
    """Write the golden values of runs, or of a night's cases, and print what changes.

    Refused for failed, suspect, short, unfinished, replayed or mixed runs, and for repeats that spread by more than half
    the threshold that the golden is to guard; also for runs of a night whose A/A does not hold. Of a night nothing is
    written unless every case is fine, or --keep_going.
    """
    from harness.errors import BadRequestError
    from harness.goldens.plan import Signature, prepare, write
    from harness.records.goldens import writable_golden_dir

    if asked.as_json and asked.markdown == "-":
        raise BadRequestError("--json and --markdown - both want stdout", remedy="name a file for one of them")
    now, folder = datetime.now(UTC), writable_golden_dir(asked.golden_dir)
    candidates, left_out = _candidates(asked, now)
    signature = Signature(asked.reason, author_or_default(asked.author), now)
    found = replace(prepare(candidates, folder, signature), left_out=tuple(left_out))
    found.require(keep_going=asked.keep_going)
    if not asked.dryrun:
        write(found, folder)
    _tell(asked, found)


def _candidates(asked: PromoteOptions, now: datetime) -> "tuple[list[Candidate], list[tuple[str, str]]]":
    from harness.errors import BadRequestError
    from harness.goldens.plan import Candidate, doubts_of_nights, night_candidates
    from harness.judging.promotion import PromotionOptions
    from harness.records.night import read_night

    options = PromotionOptions(
        replace_other=asked.replace_other, only=tuple(asked.only or ()), accept_spread=asked.accept_spread
    )
    if not (asked.case or asked.every):
        runs = _runs(asked)
        return [Candidate("", runs, options, doubts_of_nights(asked.what, asked.results_dir))], []
    if len(asked.what) > 1 or (asked.case and asked.every):
        raise BadRequestError("--case and --every exclude each other, and are for one night", remedy="name one night")
    night = read_night(asked.what[0], asked.results_dir)
    return night_candidates(night, asked.case or (), options, now.date())


def _runs(asked: PromoteOptions) -> "tuple[RunRecord, ...]":
    """All that are named. BadRequestError with every name that means no run."""
    from harness.errors import Problems

    problems = Problems()
    runs: list[RunRecord] = []
    for reference in asked.what:
        with problems.collecting():
            runs.append(_run(reference, asked.results_dir))
    problems.raise_if_any()
    return tuple(runs)


def _run(reference: str, results: Path | None) -> "RunRecord":
    """The run; BadRequestError that says so where a night is named, whose cases have to be chosen."""
    from harness.errors import BadRequestError
    from harness.records.batches import NIGHT_FOLDERS
    from harness.records.store import read_run

    try:
        return read_run(reference, results)
    except BadRequestError as no_run:
        try:
            night = NIGHT_FOLDERS.folder_of(reference, results)
        except BadRequestError:
            raise no_run from None
    raise BadRequestError(f"{night}: a night", remedy="name cases with --case NAME, or take all with --every")


def _tell(asked: PromoteOptions, found: "Promotions") -> None:
    """The answer on stdout: JSON, Markdown, or tables; Markdown for a file beside either of the others."""
    from harness.goldens.document import PromotedDocument, PromotionsDocument
    from harness.goldens.show import promotions_page
    from harness.showing import json
    from harness.showing.terminal import show_page

    page = promotions_page(found.prepared, _refusals(found), is_written=not asked.dryrun)
    if asked.markdown:
        leave_markdown(asked.markdown, page, level=2)
    if asked.markdown == "-":
        return
    if not asked.as_json:
        show_page(page)
    elif asked.case or asked.every:
        json.answer(PromotionsDocument.of_night(found, is_written=not asked.dryrun))
    else:
        (only,) = found.prepared
        json.answer(PromotedDocument.of(only, is_written=not asked.dryrun))


def _refusals(found: "Promotions") -> list[tuple[str, str]]:
    refused = [(one.name, problem.message) for one in found.refused for problem in one.problems]
    return [*refused, *((name, f"left out: {why}") for name, why in found.left_out)]


def author_or_default(author: str | None) -> str:
    """``author``, else git's user, else the system's; empty, which is refused, where neither has a name."""
    import os
    import pwd
    import shutil
    import subprocess

    if author is not None:
        return author
    git = shutil.which("git")
    if git:
        asked = subprocess.run([git, "config", "user.name"], capture_output=True, text=True, timeout=10, check=False)
        if asked.returncode == 0 and asked.stdout.strip():
            return asked.stdout.strip()
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a user that its passwd file lacks
        return ""


def leave_markdown(target: str, page: "Page", *, level: int) -> None:
    """Print the page as Markdown, or write it whole. BadRequestError where the file cannot be written."""
    from harness.errors import BadRequestError
    from harness.records.store import write_atomically
    from harness.showing.markup import markdown

    text = markdown(page, level=level)
    if target == "-":
        print(text, end="")
        return
    try:
        write_atomically(Path(target), text)
    except OSError as error:
        raise BadRequestError(
            f"--markdown {target}: cannot be written: {error.strerror}", remedy="all else is done"
        ) from error
