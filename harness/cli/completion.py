"""Values that the shell completes with Tab; it waits, so nothing here imports pydantic or opens a file."""

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.modules import MODULES
from harness.records.folders import SUITES, SWEEPS, golden_dir, recipe_paths, recipes_dir, results_dir

TASKS = ("pretrain", "sft", "peft")

Completer = Callable[..., list[str]]
"""Takes the context, the word that was begun, both or neither; typer looks at the types."""


def one_of(values: Iterable[str]) -> Completer:
    """Completes to one of ``values``."""
    known = list(values)
    return lambda: known


def _listed(values: Iterable[str]) -> Completer:
    known = tuple(values)

    def complete(incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",")
        return [before + comma + value for value in known if value not in before.split(",")]

    return complete


tasks, gpus, precisions = one_of(TASKS), one_of(GPUS), one_of(PRECISIONS)
modules = _listed((*MODULES, "none"))
settings = _listed(("none", *MODULES, "full:uniform:1", "full:block:1"))


def recipes(ctx: typer.Context) -> list[str]:
    """Names of recipes; of one family where `-m` names it."""
    family = ctx.params.get("model_family_name")
    return [path.stem for path in _recipe_files(ctx) if family in (None, path.parent.name)]


def families(ctx: typer.Context) -> list[str]:
    """Families of recipes."""
    return sorted({path.parent.name for path in _recipe_files(ctx)})


def _in_recipes(kind: str) -> Completer:
    def complete(ctx: typer.Context) -> list[str]:
        return sorted(path.stem for path in (recipes_dir(ctx.params.get("recipes_dir")) / kind).glob("*.yaml"))

    return complete


suites, sweep_files = _in_recipes(SUITES), _in_recipes(SWEEPS)


def goldens(ctx: typer.Context) -> list[str]:
    """Names of goldens as `golden list` prints them."""
    folder = golden_dir(ctx.params.get("golden_dir"))
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.glob("*/*.json"))


def _in_results(*kinds: str) -> Completer:
    def complete(ctx: typer.Context) -> list[str]:
        folders = (results_dir(ctx.params.get("results_dir")) / kind for kind in kinds)
        return sorted(path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_dir())

    return complete


runs, sweeps, nights, jobs = (_in_results(kind) for kind in ("runs", "sweeps", "nights", "jobs"))
stored = _in_results("runs", "sweeps", "nights", "bisects")


def runs_and_goldens(ctx: typer.Context) -> list[str]:
    """Runs by id and goldens by name."""
    return [*goldens(ctx), *runs(ctx)]


def commands(ctx: typer.Context) -> list[str]:
    """Commands of mbr-perf, and those of a group that stands before."""
    group: object = ctx.find_root().command
    for word in ctx.params.get("command") or ():
        group = getattr(group, "commands", {}).get(word)
    return list(getattr(group, "commands", {}))


def _recipe_files(ctx: typer.Context) -> list[Path]:
    return recipe_paths(recipes_dir(ctx.params.get("recipes_dir")))
