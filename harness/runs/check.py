"""`mbr-perf check`: whether a request is legal, and whether its recompute setting does anything."""

from dataclasses import dataclass
from typing import Annotated

import typer

from harness.asking.options import ExperimentOptions, Json, JudgeOptions, LaunchOptions, takes


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """How to check and what to print."""

    assume: Annotated[
        str | None,
        typer.Option(
            "--assume",
            metavar="NAME=VERSION,...",
            help="Judge for other software, e.g. megatron-core=0.19.2,transformer-engine=2.11,torch=2.9,gpu=h100.",
        ),
    ] = None
    no_megatron: Annotated[
        bool, typer.Option("--no_megatron", help="Do not build megatron-core's own configuration (saves seconds).")
    ] = False
    explain: Annotated[bool, typer.Option("--explain", help="Print where every setting comes from.")] = False
    as_json: Json = False


@takes(ExperimentOptions, JudgeOptions, LaunchOptions, CheckOptions)
def check(asked: ExperimentOptions, judge: JudgeOptions, launch: LaunchOptions, how: CheckOptions) -> None:
    """Judge a request by every rule, and by the installed megatron-core, without starting anything.

    Takes the options of `mbr-perf run`. Exits 2 when the request is illegal, else 0.
    """
    from harness.asking.requests import run_request
    from harness.launch.environment import this_host
    from harness.run.checking import check_request
    from harness.showing.findings import check_document, print_check

    checked = check_request(
        run_request(asked, judge, launch), this_host(), assume=how.assume, ask_megatron=not how.no_megatron
    )
    verdict = (checked.spec, checked.effective, checked.findings, checked.exit_code)
    if how.as_json:
        from harness.showing import json

        print(json.text(check_document(*verdict, sources=checked.sources, notes=checked.notes)))
    else:
        from harness.showing.printing import Console

        sources = checked.sources if how.explain else None
        print_check(Console(highlight=False), *verdict, notes=checked.notes, sources=sources)
    raise typer.Exit(int(checked.exit_code))
