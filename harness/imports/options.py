"""What the command line of `mbr-perf import` can say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.asking.options import ExperimentOptions


def _option(name: str, metavar: str | None, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="Import")


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Which logs, of one job or of several."""

    log: Annotated[
        list[str],
        _option(
            "--log",
            "[SETTING=]PATH...",
            "Logs of Megatron-Bridge or Megatron-LM: files, or folders of them, of one job. With SETTING=, one job of "
            "several that differ in it: none=a.log, mlp,core_attn=b.log, 'core_attn pp=8'=c.log; they become a sweep. The "
            "same SETTING again is a repeat. Repeatable.",
        ),
    ]
    sweep: Annotated[
        str | None,
        _option(
            "--sweep",
            "NAME|PATH",
            "A sweep file: what the jobs have in common, their title and control. The command line wins over it.",
        ),
    ] = None
    control: Annotated[
        str,
        _option(
            "--control",
            "SETTING",
            "The job that the others are held against. Default: that of no recompute, else the first.",
        ),
    ] = ""
    started_at: Annotated[
        str | None,
        _option(
            "--started_at",
            "TIME",
            "When the job started (the first, of several), ISO-8601, in UTC unless it names a zone. Default: the times in "
            "the log, taken for UTC unless they name a zone. Where it has none the time is unknown; history then has the "
            "run at the time of its import, marked ?. The age of the file says nothing.",
        ),
    ] = None
    results_dir: Annotated[
        Path | None,
        _option("--results_dir", "DIR", "Where runs are kept. Default: results of the checkout, else ./results."),
    ] = None
    as_json: Annotated[bool, _option("--json", None, "One JSON document on stdout.")] = False


@dataclass(frozen=True, kw_only=True)
class JobOptions(ExperimentOptions):
    """What the job trained; the recipe may come from a sweep file."""

    model_recipe_name: Annotated[
        str,
        typer.Option(
            "--model_recipe_name",
            "-mr",
            metavar="RECIPE",
            help="A recipe name (`mbr-perf recipes list`) or the path of a recipe file. Not needed with --sweep.",
        ),
    ] = ""
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            "-g",
            metavar="GPU",
            help="What the job ran on: h100, h200, a100, b200, b300, gb200, gb300, l40s or cpu. Needed: no log says it.",
        ),
    ] = None
