"""`mbr-perf schema`: the JSON Schema (draft 2020-12) of a command's `--json` output."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from harness.cli.options import Json

_RUN = ("measure.values:RunDocument", "measure.values:RunPlanDocument")
_SWEEP = ("sweep.values:SweepRunDocument", "sweep.values:SweepPlanDocument", "sweep.values:SweepJobPlanDocument")
_JOB = tuple(f"cluster.showing:{name}Document" for name in ("Submitted", "Prepared"))

DOCUMENTS: Mapping[str, tuple[str, ...]] = {
    "bisect": ("bisect.values:BisectAnswer",),
    "capture": ("capture.ask:CaptureDocument",),
    "probe": ("probe.show:ProbeDocument",),
    "check": ("check.show:CheckDocument",),
    "compare": ("measure.values:CompareDocument", "compare.foreign:ForeignAnswer"),
    "diagnose": ("diagnose.values:Diagnosis",),
    "doctor": ("results.examine:MachineDocument",),
    "explain": ("explain.values:Explanation",),
    "golden export": ("golden.export:ExportDocument",),
    "golden list": ("golden.show:GoldensDocument",),
    "golden promote": ("golden.show:PromotedDocument", "golden.promotions:PromotionsDocument"),
    "golden show": ("golden.show:GoldenDocument",),
    "history": ("history.show:HistoryDocument", "history.cases:CaseHistory"),
    "history add": ("history.show:AddedDocument",),
    "import": ("measure.values:RunDocument",),
    "jobs cancel": ("jobs.show:CancelledDocument",),
    "jobs status": ("jobs.show:JobDocument",),
    "jobs submit": ("cluster.showing:SubmittedDocument",),
    "jobs wait": (_RUN[0], _SWEEP[0], "cluster.showing:SubmittedDocument"),
    "nightly": (
        "nightly.values:NightVerdict",
        "nightly.outlook:NightPlanDocument",
        "nightly.outlook:NightJobPlanDocument",
    ),
    "plan": ("plan.rows:PlanDocument", "plan.show_calibration:CalibrationDocument"),
    "recipes list": ("recipes.rows:RecipesDocument",),
    "recipes show": ("recipes.rows:RecipeDocument",),
    "recipes export": ("recipes.rows:ExportedDocument",),
    "recipes new": ("recipes.rows:ExportedDocument",),
    "recipes validate": ("recipes.rows:CheckedDocument",),
    "report": ("sweep.values:SweepVerdict",),
    "results archive": ("results.archive:ArchiveDocument",),
    "results list": ("results.show:InventoryDocument",),
    "results show": ("results.show:EntryDocument",),
    "rules list": ("recipes.rows:RulesDocument",),
    "rules show": ("recipes.rows:RulesDocument",),
    "run": (*_RUN, *_SWEEP, *_JOB),
    "schema": ("recipes.rows:CommandsDocument",),
    "snapshot": ("snapshot.show:SnapshotDocument",),
    "sweep": (*_SWEEP, *_JOB),
}


def schema_of(command: str) -> dict[str, Any]:
    """Return the schema of the command's documents. KeyError: the command is unknown."""
    from functools import reduce
    from importlib import import_module
    from operator import or_

    from harness.show.json import ErrorDocument, schema

    places = (place.partition(":") for place in DOCUMENTS[command])
    found = [getattr(import_module(f"harness.{module}"), name) for module, _, name in places]
    description = f"`mbr-perf {command} --json`. Later releases may add keys: ignore keys that you do not know."
    return schema(reduce(or_, [*found, ErrorDocument]), f"mbr-perf {command}", description)


def schema(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="As you type it: `run`, `golden list`.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a command's --json output. Without COMMAND, list the commands."""
    from harness.errors import BadRequestError, nearest

    name = " ".join(command or ())
    if name in DOCUMENTS:
        import json as plain_json

        print(plain_json.dumps(schema_of(name), indent=2, ensure_ascii=False))
    elif name:
        group = [command for command in DOCUMENTS if command.startswith(f"{name} ")]
        remedy = f"name one of: {', '.join(group)}" if group else nearest(name, DOCUMENTS)
        raise BadRequestError(f"schema {name}: no such command with --json", remedy=remedy)
    elif as_json:
        from harness.recipes.rows import CommandsDocument
        from harness.show import json

        json.answer(CommandsDocument(commands=tuple(DOCUMENTS)))
    else:
        print("\n".join(DOCUMENTS))
