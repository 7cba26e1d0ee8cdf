"""The commands `recipes` and `rules`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion
from harness.cli.commands import App, JobCommand, WholeShortOptions, takes
from harness.cli.options import ExperimentOptions, Json, option, options
from harness.show.answer import answer

if TYPE_CHECKING:
    from harness.resolve.recipe import Request
    from harness.resolve.resolve import Resolved

recipes = App(no_args_is_help=True, help="List, show, check, export and write recipes.")
rules = App(no_args_is_help=True, help="List the rules, and explain one.")
Directory = Annotated[Path | None, typer.Option("--recipes_dir", metavar="DIR", help="Directory of recipe families.")]


@recipes.command("list")
def list_recipes(
    gpu: Annotated[
        str | None, option("GPU", "List only this GPU type.", "--gpu", "-g", completes=completion.gpus)
    ] = None,
    recipes_dir: Directory = None,
    as_json: Json = False,
) -> None:
    """List every recipe with its size and its operating points."""
    from harness.recipes.rows import recipes_document
    from harness.recipes.show import recipes_page

    found = recipes_document(recipes_dir, gpu)
    answer(lambda: found, lambda: recipes_page(found.recipes), as_json=as_json)


@recipes.command("show")
def show_recipe(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", autocompletion=completion.recipes, help="A recipe name, or a recipe file."),
    ],
    recipes_dir: Directory = None,
    as_json: Json = False,
) -> None:
    """Show the model of a recipe and all its operating points."""
    from harness.recipes.rows import recipe_document
    from harness.recipes.show import recipe_page
    from harness.resolve.find import open_recipe

    recipe = open_recipe(name, recipes_dir)
    answer(lambda: recipe_document(recipe), lambda: recipe_page(recipe), as_json=as_json)


@recipes.command()
def validate(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Recipe files. Default: all recipes.")
    ] = None,
    recipes_dir: Directory = None,
    as_json: Json = False,
) -> None:
    """Check recipe files: keys, values, operating points, and the rules of megatron-core 0.16.1.

    Exits 2 with all problems. Lists published points that break a rule; `run` refuses them.
    """
    from harness.errors import raise_all
    from harness.recipes.rows import CheckedDocument, check_files
    from harness.recipes.show import checked_page

    checked, problems = check_files(paths or [], recipes_dir)
    if not as_json:
        raise_all(problems)
    document = CheckedDocument.of(checked=checked, problems=problems)
    answer(lambda: document, lambda: checked_page(checked), as_json=as_json)
    if problems:
        raise typer.Exit(int(problems[0].exit_code))


def _resolved(asked: ExperimentOptions) -> "tuple[Request, Resolved]":
    from harness.cli.requests import experiment_request, require_job
    from harness.resolve.resolve import on_gpu_point, resolve

    request = experiment_request(asked)
    require_job(request)
    request = request if request.gpu else on_gpu_point(request)[0]
    return request, resolve(request)


@options()
class ExportOptions:
    """What to write."""

    form: Annotated[str, option("FORM", "bridge, megatron-lm, yaml (a recipe), or python (a plan by layer).", "--as")]
    as_json: Json = False


@recipes.command("export", cls=JobCommand, is_plain=True)
@takes(ExperimentOptions, ExportOptions)
def export_point(asked: ExperimentOptions, how: ExportOptions) -> None:
    """Print a point, or any job, as overrides of Megatron-Bridge, arguments of Megatron-LM, or a recipe file.

    Takes the options of `mbr-perf check`: `--recompute mlp` exports the point with that setting. Exits 2 for a job that
    a rule of megatron-core 0.16.1 refuses; where another release accepts it, `--force RULE_ID` exports it.
    """
    from harness.errors import BadRequestError, raise_all
    from harness.foreign.exporting import exported
    from harness.recipes.rows import ExportedDocument, refusals_of
    from harness.show.page import Code, Line, Page
    from harness.show.terminal import narrate

    _, job = _resolved(asked)
    found = refusals_of(job.spec, frozenset(asked.force or ()))
    problems = {f"{each.id}: {each.message}": f"{each.fix}, or --force {each.id}" for each in found if each.blocks}
    raise_all([BadRequestError(message, remedy=remedy) for message, remedy in problems.items()])
    refused = [f"refused by rule {each.id}: {each.message}" for each in found]
    narrate(*(Line(f"warning: {each}", "failed", hang=2) for each in refused))
    written = exported(job.spec, how.form, (*refused, *job.notes), job.sources)
    answer(lambda: ExportedDocument.of(written), lambda: Page((Code(written.text.rstrip()),)), as_json=how.as_json)


@options()
class NewOptions:
    """Where to write the recipe."""

    output: Annotated[Path, option("FILE", "The recipe file to write. It must not exist yet.", "--output", "-o")]
    as_json: Json = False


@recipes.command("new", cls=WholeShortOptions)
@takes(ExperimentOptions, NewOptions)
def new_recipe(asked: ExperimentOptions, what: NewOptions) -> None:
    """Write your own job (`--hf`, `--megatron_args`, `--bridge_config`, or a recipe with options) as a recipe file.

    A comment names the source of each setting. `mbr-perf plan -mr FILE` then plans the same job.
    """
    from harness.errors import BadRequestError, os_errors_reported
    from harness.recipes.rows import ExportedDocument, refusals
    from harness.records.store import write_atomically
    from harness.resolve.recipe_file import load_recipe
    from harness.resolve.writing import recipe_text
    from harness.show.page import Line, Page

    path = what.output
    if path.suffix not in (".yaml", ".yml"):
        raise BadRequestError(f"-o {path}: the name of a recipe file ends in .yaml", remedy=f"-o {path}.yaml")
    if path.exists() or path.is_symlink():
        raise BadRequestError(f"-o {path}: exists already", remedy="name another file, or remove this one")
    request, job = _resolved(asked)
    source = " ".join(" ".join(request.job_words).split())  # a path may hold line breaks
    comments = {place: " ".join(each.split()) for place, each in job.sources.items() if each != "default"}
    first = f"Written by mbr-perf recipes new from {source}; the comments name the sources."
    heading = "\n".join((first, *job.notes))
    text = recipe_text(job.spec, title=job.spec.recipe, source=source, comments=comments, heading=heading)
    with os_errors_reported(f"-o {path}: cannot be written", "check the folder"):
        write_atomically(path, text)
    recipe = load_recipe(path, str(path))  # a defect of the file fails here, not in the next command
    refused = [f"refused by rule {each.id}: {each.message}" for each in refusals(recipe, recipe.points[0])]
    written = f"{path}: written. Plan it with mbr-perf plan -mr {path} -g {request.gpu}"
    answer(
        lambda: ExportedDocument(form="yaml", words=(), remarks=tuple(refused), text=text),
        lambda: Page(tuple(Line(each, whole=True) for each in (written, *refused))),
        as_json=what.as_json,
    )


@rules.command("list")
def list_rules(
    severity: Annotated[
        str | None, typer.Option("--severity", metavar="NAME", help="List only error, warning or note.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List every rule with id, severity and message."""
    from harness.experiment.rules.rulebook import entries
    from harness.recipes.rows import RulesDocument
    from harness.recipes.show import rules_page

    found = entries(severity)
    answer(lambda: RulesDocument(rules=found), lambda: rules_page(found), as_json=as_json)


def _rule_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    from harness.experiment.rules.rulebook import every_id

    del ctx, incomplete
    return list(every_id())


@rules.command("show")
def show_rule(
    rule: Annotated[str, typer.Argument(metavar="ID", autocompletion=_rule_ids, help="A rule id, e.g. T08.")],
    as_json: Json = False,
) -> None:
    """Explain a rule: its message, fix, versions and evidence."""
    from harness.experiment.rules.rulebook import entries_named
    from harness.recipes.rows import RulesDocument
    from harness.recipes.show import rule_page

    found = entries_named(rule)
    answer(lambda: RulesDocument(rules=found), lambda: rule_page(found), as_json=as_json)
