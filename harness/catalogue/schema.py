"""`mbr-perf schema`: the JSON Schema (draft 2020-12) of a command's `--json` output."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from harness.asking.options import Json

_RUN = ("run.document:RunDocument", "run.document:RunPlanDocument")
_SWEEP = ("sweep.document:SweepRunDocument", "sweep.document:SweepPlanDocument", "sweep.document:SweepJobPlanDocument")
_JOB = tuple(f"run.document:{name}Document" for name in ("Submitted", "Prepared", "Waiting"))

DOCUMENTS: Mapping[str, tuple[str, ...]] = {
    "check": ("run.document:CheckDocument",),
    "compare": ("run.document:CompareDocument", "imports.compare.document:ForeignDocument"),
    "diagnose": ("diagnose.document:DiagnosisDocument", "diagnose.document:OverviewDocument"),
    "doctor": ("results.document:MachineDocument",),
    "explain": ("explain.show:ExplainDocument",),
    "golden diff": ("goldens.document:DifferenceDocument",),
    "golden export": ("goldens.document:ExportDocument",),
    "golden list": ("goldens.document:GoldensDocument",),
    "golden promote": ("goldens.document:PromotedDocument", "goldens.document:PromotionsDocument"),
    "golden retire": ("goldens.document:RetiredDocument",),
    "golden show": ("goldens.document:GoldenDocument",),
    "history": ("night.history.document:HistoryDocument", "night.history.document:CaseDocument"),
    "history add": ("night.history.document:AddedDocument",),
    "import": ("run.document:RunDocument", "sweep.document:SweepRunDocument"),
    "jobs cancel": ("jobs.show:CancelledDocument",),
    "jobs list": ("jobs.show:JobsDocument",),
    "jobs logs": ("jobs.show:LogsDocument",),
    "jobs status": ("jobs.show:JobDocument",),
    "jobs submit": ("run.document:SubmittedDocument",),
    "jobs wait": (_RUN[0], _SWEEP[0], "run.document:WaitingDocument", "run.document:CaseJobDocument"),
    "nightly": tuple(f"night.document:{name}Document" for name in ("Night", "NightPlan", "NightJobPlan")),
    "plan": ("plan.document:PlanDocument", "plan.document:CalibrationDocument"),
    "recipes list": ("catalogue.show:RecipesDocument",),
    "recipes show": ("catalogue.show:RecipeDocument",),
    "recipes suites": ("catalogue.show:SuitesDocument", "catalogue.show:SuiteDocument"),
    "recipes export": ("catalogue.show:ExportedDocument",),
    "recipes new": ("catalogue.show:ExportedDocument",),
    "recipes validate": ("catalogue.show:CheckedDocument",),
    "report": ("sweep.document:SweepDocument",),
    "results archive": ("results.document:ArchiveDocument",),
    "results doctor": ("results.document:AilmentsDocument",),
    "results export": ("results.document:ExportDocument",),
    "results list": ("results.document:InventoryDocument",),
    "results show": ("results.document:EntryDocument",),
    "rules list": ("catalogue.show:RulesDocument",),
    "rules show": ("catalogue.show:RulesDocument",),
    "run": (*_RUN, "sweep.document:AbDocument", *_SWEEP[1:], *_JOB),
    "schema": ("catalogue.show:CommandsDocument",),
    "snapshot": ("diagnose.document:SnapshotDocument", "diagnose.document:SnapshotDifferenceDocument"),
    "sweep": (*_SWEEP, *_JOB),
}
"""By command, the types of its documents below `harness`. Every command may also print an error."""


def schema_of(command: str) -> dict[str, Any]:
    """Return the schema of the command's documents. KeyError: the command is unknown."""
    from functools import reduce
    from importlib import import_module
    from operator import or_

    from harness.showing.json import ErrorDocument, schema

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
        from harness.catalogue.show import CommandsDocument
        from harness.showing import json

        json.answer(CommandsDocument(commands=tuple(DOCUMENTS)))
    else:
        print("\n".join(DOCUMENTS))
