"""What the command line of `mbr-perf sweep` can say beyond the settings of a run."""

from dataclasses import dataclass
from typing import Annotated

import typer

from harness.asking.options import ExperimentOptions

_SWEEP = "Sweep"


# fmt: off
@dataclass(frozen=True, kw_only=True)
class SweptOptions(ExperimentOptions):
    """What to run; the recipe may come from a sweep file or from the sweep that is resumed."""

    model_recipe_name: Annotated[str, typer.Option("--model_recipe_name", "-mr", metavar="RECIPE",
        help="A recipe name (`mbr-perf recipes list`) or the path of a recipe file. Not needed with --file or --resume.")] = ""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What to vary, and how often."""

    over: Annotated[list[str] | None, typer.Option("--over", metavar="AXIS=V,V,...", rich_help_panel=_SWEEP,
        help="Vary this: recompute, tp, pp, vp, cp, ep, et, mb, gb, sl, ng, any long option, env.NAME or section.field. "
        "Values that hold commas are separated by ';', those of recompute always: recompute='none; mlp; core_attn,layernorm'. "
        "recompute=auto: every setting that differs in effect. Several may follow one --over; repeatable.")] = None
    file: Annotated[str | None, typer.Option("--file", metavar="NAME|PATH", rich_help_panel=_SWEEP,
        help="A sweep file: a name in recipes/sweeps or a path. The command line wins over it.")] = None
    grid: Annotated[bool, typer.Option("--grid", rich_help_panel=_SWEEP,
        help="Every combination of the axes, instead of one change at a time from the control.")] = False
    control: Annotated[str | None, typer.Option("--control", metavar="'AXIS=VALUE ...'", rich_help_panel=_SWEEP,
        help="What the others are held against. Default: no recompute where recompute is varied, else the request as it is.")] = None
    repeats: Annotated[int | None, typer.Option("--repeats", metavar="N", rich_help_panel=_SWEEP,
        help="Run every cell N times, interleaved (A B C A B C); 3 give confidence intervals.")] = None
    max_minutes: Annotated[float | None, typer.Option("--max_minutes", metavar="MINUTES", rich_help_panel=_SWEEP,
        help="Start no run that would not be done by then; --resume does the rest.")] = None
    no_prune: Annotated[bool, typer.Option("--no_prune", rich_help_panel=_SWEEP,
        help="Also run cells that are predicted to be out of memory, or that an OOM shows to be hopeless.")] = False
    margin: Annotated[float, typer.Option("--margin", metavar="FRACTION", rich_help_panel=_SWEEP,
        help="Share of the memory that a recommended setting leaves free.")] = 0.06
    no_warm: Annotated[bool, typer.Option("--no_warm", rich_help_panel=_SWEEP,
        help="Start every run in processes of its own that import everything anew, instead of from a warm parent.")] = False
    resume: Annotated[str | None, typer.Option("--resume", metavar="SWEEP", rich_help_panel=_SWEEP,
        help="Do what is missing of a sweep: its folder or the start of its id. Everything else is taken from it.")] = None
    dryrun: Annotated[bool, typer.Option("--dryrun", "--dry_run", "-d", rich_help_panel=_SWEEP,
        help="Print the cells, what is predicted of them and what would become of them; run nothing.")] = False
    as_json: Annotated[bool, typer.Option("--json", rich_help_panel=_SWEEP, help="One JSON document on stdout.")] = False
# fmt: on
