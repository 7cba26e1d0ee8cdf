"""The command `mbr-perf check`."""

from typing import Annotated

import typer

from harness.cli.commands import takes
from harness.cli.options import ExperimentOptions, Explain, Json, JudgeOptions, LaunchOptions, flag, option, options


# fmt: off
@options()
class CheckOptions:
    """Options of `check`."""

    assume: Annotated[str | None, option("NAME=VERSION,...", "Judge for other software, e.g. "
        "megatron-core=0.19.2,transformer-engine=2.11,torch=2.9,gpu=h100.")] = None
    no_megatron: Annotated[bool, flag("Do not build megatron-core's own configuration (saves seconds).")] = False
    explain: Explain = False
    as_json: Json = False
# fmt: on


@takes(ExperimentOptions, JudgeOptions, LaunchOptions, CheckOptions)
def check(asked: ExperimentOptions, judge: JudgeOptions, launch: LaunchOptions, how: CheckOptions) -> None:
    """Judge a request by every rule, and by the installed megatron-core, without starting anything.

    Takes the options of `mbr-perf run`. Exits 2 when the request is illegal, else 0.
    """
    from harness.check.show import CheckDocument, check_page
    from harness.cli.requests import run_request
    from harness.launch.environment import this_host
    from harness.measure.checking import check_request
    from harness.show.answer import answer

    request = run_request(asked, judge, launch)
    checked = check_request(request, this_host(), assume=how.assume, ask_megatron=not how.no_megatron, gpu_point=True)
    verdict = (checked.spec, checked.effective, checked.findings)
    sources = checked.sources if how.explain else None
    cure = ""
    if checked.cure:
        from harness.cli.refusals import completed
        from harness.records.redact import own_command

        (cure,) = completed(own_command()[1:], [checked.cure])
    answer(
        lambda: CheckDocument.of(checked),
        lambda: check_page(*verdict, notes=checked.notes, cure=cure, sources=sources),
        as_json=how.as_json,
    )
    raise typer.Exit(int(checked.exit_code))
