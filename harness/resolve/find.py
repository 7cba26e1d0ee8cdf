"""Finds the file of a recipe's name, without parsing any file."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError, nearest
from harness.experiment.experiment import NAME_PATTERN
from harness.records import folders
from harness.resolve.recipe import Recipe
from harness.resolve.recipe_file import load_recipe


@dataclass(frozen=True)
class RecipeFile:
    """A recipe's file, not read yet. Messages and sources call it ``label``."""

    path: Path
    label: str
    name: str | None
    family: str | None


def recipes_dir(override: Path | None = None) -> Path:
    """Return :func:`folders.recipes_dir`; BadRequestError if it does not exist."""
    directory = folders.recipes_dir(override)
    if not directory.is_dir():
        raise BadRequestError(f"no recipe directory at {directory}", remedy="give --recipes_dir DIR")
    return directory


def all_recipe_files(directory: Path) -> list[RecipeFile]:
    """List the recipes of the directory by family and name, without opening any."""
    return [
        RecipeFile(path, f"{directory.name}/{path.parent.name}/{path.name}", path.stem, path.parent.name)
        for path in folders.recipe_paths(directory)
    ]


NOT_BUILT = {
    r"nemotron.*": "the model has Mamba layers, which mbr-perf does not build",
    r"qwen\w*_vl_.*": "the model has a vision encoder, which mbr-perf does not build",
    r"wan_.*": "the model makes videos by diffusion; mbr-perf builds language models only",
    r"glm5\d?": "the model has sparse attention (DSA), which mbr-perf does not build",
}
"""Models of Megatron-Bridge's performance recipes without a recipe here: patterns of their names, and why."""


def find_recipe_file(name: str, directory: Path | None = None) -> RecipeFile:
    """Find the file of ``-mr NAME``, or of a path (has a separator or ends in .yaml/.yml). BadRequestError."""
    if is_path(name):
        if not Path(name).is_file():
            fix = "check the path, or give a name from `mbr-perf recipes list`"
            raise BadRequestError(f"-mr {name}: no such file", remedy=fix)
        return RecipeFile(Path(name), name, None, None)
    name, directory = name.strip().lower(), recipes_dir(directory)
    if not re.fullmatch(NAME_PATTERN, name):
        fix = "letters, digits, _ . - only; to use a file of your own give a path ending in .yaml"
        raise BadRequestError(f"-mr {name!r} is not a recipe name", remedy=fix)
    files = {str(file.name): file for file in all_recipe_files(directory)}
    if name not in files:
        for names, reason in NOT_BUILT.items():
            if re.fullmatch(names, name):
                fix = "`mbr-perf recipes list` names the models that it builds"
                raise BadRequestError(f"recipe '{name}': {reason}", remedy=fix)
        raise BadRequestError(f"unknown recipe '{name}'", remedy=nearest(name, files))
    require_inside(directory, files[name].path, f"-mr {name}")
    return files[name]


def require_inside(root: Path, path: Path, asked: str) -> None:
    """Raise BadRequestError for a link that leaves ``root``; ``asked`` opens the message."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise BadRequestError(f"{asked}: {path} is a link that leaves {root}", remedy="copy the file instead")


def is_path(name: str) -> bool:
    """Tell a path from a name: it has a separator, or ends in .yaml or .yml."""
    return "/" in name or "\\" in name or name.lower().endswith((".yaml", ".yml"))


def open_recipe(name: str, directory: Path | None = None, family: str | None = None) -> Recipe:
    """Find and read a recipe; a recipe of the directory must have the name of its file and folder."""
    file = find_recipe_file(name, directory)
    _refuse_configuration(file)
    recipe = load_recipe(file.path, file.label)
    check_names(recipe, file)
    if family is not None and recipe.header.family != family.strip().lower():
        raise BadRequestError(
            f"-m {family}: recipe '{recipe.header.name}' is of family '{recipe.header.family}'",
            remedy=f"-m {recipe.header.family}",
        )
    return recipe


_HEAD_BYTES = 4096


def _refuse_configuration(file: RecipeFile) -> None:
    if not file.path.is_file():  # a pipe, which load_recipe refuses
        return
    with suppress(OSError), file.path.open("rb") as stream:  # load_recipe reports a file that cannot be read
        if b"megatron.bridge.training.config.ConfigContainer" in stream.read(_HEAD_BYTES):
            raise BadRequestError(
                f"-mr {file.label}: a configuration of Megatron-Bridge, not a recipe",
                remedy=f"--bridge_config {file.label}",
            )


def check_names(recipe: Recipe, file: RecipeFile) -> None:
    """Require that names inside the file agree with its place, so that a name alone finds it."""
    inside, outside = (recipe.header.name, recipe.header.family), (file.name, file.family)
    if file.name is not None and inside != outside:
        raise BadRequestError(
            f"{file.label}: name and family are {inside}, but file and folder are named {outside}",
            remedy="rename the file or folder, or change the field",
        )
