"""What the command line of `mbr-perf nightly` can say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

_SUITE, _JUDGE, _OUTPUT = "Suite", "Judging", "Output"


# fmt: off
@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """What to run, and how often."""

    suite: Annotated[str | None, typer.Argument(metavar="SUITE",
        help="A suite file: a name in recipes/suites or a path. Not with --resume.")] = None
    only: Annotated[list[str] | None, typer.Option("--only", metavar="PATTERN", rich_help_panel=_SUITE,
        help="Only cases whose names match, e.g. 'llama3_*'. Repeatable.")] = None
    shard: Annotated[str, typer.Option("--shard", metavar="I/N", rich_help_panel=_SUITE,
        help="Only the I-th of N parts of the suite; every case is in one of them.")] = ""
    confirm: Annotated[int, typer.Option("--confirm", metavar="N", rich_help_panel=_SUITE,
        help="Run a case that looks like a regression N more times before it is called one.")] = 2
    retries: Annotated[int, typer.Option("--retries", metavar="N", rich_help_panel=_SUITE,
        help="Start at most N more runs of a case after a named fault of the machines; each is recorded.")] = 1
    resume: Annotated[str | None, typer.Option("--resume", metavar="NIGHT", rich_help_panel=_SUITE,
        help="Do what is missing of a night: its folder or the start of its id. Everything else is taken from it.")] = None
    recipes_dir: Annotated[Path | None, typer.Option("--recipes_dir", metavar="DIR", rich_help_panel=_SUITE,
        help="Directory of recipe families and of suites/.")] = None
    dryrun: Annotated[bool, typer.Option("--dryrun", "--dry_run", "-d", rich_help_panel=_SUITE,
        help="Print the cases, their goldens, how they went last time and what would run, with Slurm the batch files; run nothing.")] = False


@dataclass(frozen=True, kw_only=True)
class NightJudgeOptions:
    """How to judge; thresholds are the suite's."""

    golden_dir: Annotated[Path | None, typer.Option("--golden_dir", metavar="DIR", rich_help_panel=_JUDGE,
        help="Where golden values are. Default: results/golden of the checkout.")] = None
    accept_difference: Annotated[list[str] | None, typer.Option("--accept_difference", metavar="NAME", rich_help_panel=_JUDGE,
        help="Compare although this differs from the golden's: a package, driver_version, or software. Repeatable.")] = None
    fail_on_improvement: Annotated[bool, typer.Option("--fail_on_improvement", rich_help_panel=_JUDGE,
        help="Exit 7 on an improvement beyond the threshold.")] = False
    aa: Annotated[bool, typer.Option("--aa", rich_help_panel=_JUDGE,
        help="Run one case under two labels, and judge times only if these are found equal. On Slurm they run in its job.")] = False
    aa_case: Annotated[str, typer.Option("--aa_case", metavar="NAME", rich_help_panel=_JUDGE,
        help="The case of --aa. Default: the one with the least expected GPU time.")] = ""
    aa_pairs: Annotated[int | None, typer.Option("--aa_pairs", metavar="N", rich_help_panel=_JUDGE,
        help="Runs of --aa under either label, 3 to 50. Default: 4.")] = None


@dataclass(frozen=True, kw_only=True)
class NightOutputOptions:
    """Where the answer goes; the night's folder has every report in any case."""

    as_json: Annotated[bool, typer.Option("--json", rich_help_panel=_OUTPUT, help="One JSON document on stdout.")] = False
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", rich_help_panel=_OUTPUT,
        help="JUnit XML.")] = None
    step_summary: Annotated[Path | None, typer.Option("--step_summary", metavar="FILE", rich_help_panel=_OUTPUT,
        help="Append Markdown, e.g. to $GITHUB_STEP_SUMMARY.")] = None
    html: Annotated[Path | None, typer.Option("--html", metavar="DIR", rich_help_panel=_OUTPUT,
        help="A page per night and an index of all nights.")] = None
# fmt: on
