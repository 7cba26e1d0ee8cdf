"""`mbr-perf rules`: what the rule table knows."""

from typing import Annotated

import typer

from harness.asking.help import App
from harness.asking.options import Json

app = App(no_args_is_help=True, help="List the rules, and explain one.")


@app.command("list")
def list_rules(
    severity: Annotated[
        str | None,
        typer.Option("--severity", help="Only error, warning or note; closed: rules that no request can break."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Every rule: id, severity, what it says."""
    from harness.experiment.rules.rulebook import entries

    found = entries(severity)
    if as_json:
        from harness.catalogue.document import RulesDocument
        from harness.showing import json

        json.answer(RulesDocument(rules=found))
        return
    from harness.catalogue.show import rules_page
    from harness.showing.terminal import show_page

    show_page(rules_page(found))


@app.command()
def show(
    rule: Annotated[str, typer.Argument(metavar="ID", help="A rule id, e.g. T08.")], as_json: Json = False
) -> None:
    """One rule: what it means, the fix, megatron-core's words, the versions it holds for, and the evidence."""
    from harness.experiment.rules.rulebook import entries_named

    found = entries_named(rule)
    if as_json:
        from harness.catalogue.document import RulesDocument
        from harness.showing import json

        json.answer(RulesDocument(rules=found))
        return
    from harness.catalogue.show import rule_page
    from harness.showing.terminal import show_page

    show_page(rule_page(found))
