"""The tables of recipes/README.md: keys of recipe, suite and sweep files, from their models; files of this checkout.

The text of the README is its own. `python -m harness.recipes.reference` renews what stands between its marks.
"""

import re
import types
from collections.abc import Callable, Iterable
from typing import Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from harness.experiment.gpu import GPUS, PRECISIONS
from harness.experiment.recompute import MODULES
from harness.experiment.user_buffers import METHODS, NAMED, UserBuffers
from harness.recipes.axes import SHORT_NAMES
from harness.recipes.find import recipes_dir
from harness.recipes.meanings import MEANINGS
from harness.recipes.recipe import PointKey, RecipeHeader
from harness.recipes.settings import SECTION_MODELS, TOP_SECTIONS
from harness.recipes.suite import ExpectedFailure
from harness.recipes.suite_file import CaseEntry, SuiteFile, SuiteSettings, read_suite, suite_files
from harness.recipes.sweep_file import SweepFile, read_sweep_file, sweep_files

_BLOCK = re.compile(r"(?<=<!-- generated: )([a-z ]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def renewed(readme: str) -> str:
    """The README with every generated block as the models and the files of this checkout have it."""
    return _BLOCK.sub(lambda block: f"{block[1]}{block[2]}\n{BLOCKS[block[1]]().strip()}\n\n", readme)


def _settings() -> str:
    parts = [
        _section("The file", "file", RecipeHeader),
        "Then `model`, `defaults`, `profiles` (shared settings by name) and `points` (a list).\n",
        _section("A point", "point", PointKey),
        f"GPU types: {_names(GPUS)}. Precisions: {_names(PRECISIONS)}.\n",
        f"Sections of a point, of `defaults` and of a profile: {_names(TOP_SECTIONS)}.\n",
    ]
    return "\n".join([*parts, *(_section(path, path, model) for path, model in SECTION_MODELS.items())])


def _section(title: str, section: str, model: type[BaseModel]) -> str:
    about = " ".join((model.__doc__ or "").replace("``", "`").split())
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, info in model.model_fields.items():
        if f"{section}.{name}" not in SECTION_MODELS:
            meaning = info.description or MEANINGS[section][name]
            rows.append(f"| `{name}` | {_type(info)} | {_default(info)} | {meaning} |")
    return f"## {title}\n\n{about}\n\n" + "\n".join(rows) + "\n"


def _sweep_keys() -> str:
    rows = [f"| `{name}` | {info.description} |" for name, info in SweepFile.model_fields.items()]
    axes = f"Axes: `recompute`, {_names(SHORT_NAMES)}, any other long option, `env.NAME`, `section.field`."
    return "\n".join(["| key | meaning |", "|---|---|", *rows, "", axes])


def _sweep_files() -> str:
    sweeps = {path.stem: read_sweep_file(path.stem) for path in sweep_files(recipes_dir())}
    rows = [f"| `{name}` | {sweep.title} | {sweep.source} |" for name, sweep in sweeps.items()]
    return "\n".join(["| file | about | source |", "|---|---|---|", *rows])


def _suite_keys() -> str:
    both = SuiteSettings.model_fields
    own = {name: info for name, info in CaseEntry.model_fields.items() if name not in both}
    groups = {"file": SuiteFile.model_fields, "both": both, "case": own, "`expected`": ExpectedFailure.model_fields}
    rows = [
        f"| `{name}` | {of} | {info.description} |"
        for of, fields in groups.items()
        for name, info in fields.items()
        if info.description
    ]
    return "\n".join(["| key | of | meaning |", "|---|---|---|", *rows])


def _suite_files() -> str:
    suites = [read_suite(path.stem) for path in suite_files(recipes_dir())]
    rows = [f"| `{suite.name}` | {len(suite.cases)} | {suite.title} | {suite.source} |" for suite in suites]
    return "\n".join(["| suite | cases | about | source |", "|---|---|---|---|", *rows])


def _user_buffers() -> str:
    """What ``kernels.tp_comm_overlap_cfg`` may hold."""
    gemms = [
        f"| `{name}` | {' '.join(f'`{method}`' for method in _methods(info))} |"
        for name, info in UserBuffers.model_fields.items()
    ]
    settings = [
        f"| `{_method_of(model)}` | "
        + ", ".join(f"`{key}` {_default(info)}" for key, info in model.model_fields.items() if key != "method")
        + " |"
        for model in METHODS
    ]
    names = [f"- `{name}`" for name in NAMED]
    return "\n".join(
        [
            "| GEMM | methods |",
            "|---|---|",
            *gemms,
            "",
            "| method | settings with their defaults |",
            "|---|---|",
            *settings,
            "",
            "Names:",
            "",
            *names,
        ]
    )


def _methods(info: FieldInfo) -> tuple[str, ...]:
    """Methods that a buffer may have."""
    offered = str(info.annotation)
    return tuple(_method_of(model) for model in METHODS if model.__name__ in offered)


def _method_of(model: type[BaseModel]) -> str:
    return str(get_args(model.model_fields["method"].annotation)[0])


def _type(info: FieldInfo) -> str:
    return _annotation(info.annotation, tuple(info.metadata)).replace("|", "\\|")


def _annotation(annotation: object, bounds: tuple[object, ...]) -> str:
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is Literal:
        return " ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"list of {_annotation(get_args(annotation)[0], ())}"
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_annotation(arm, bounds) for arm in get_args(annotation))
    if hasattr(annotation, "__metadata__"):
        constraints = [c for m in annotation.__metadata__ for c in getattr(m, "metadata", [m])]
        return _annotation(get_args(annotation)[0], (*bounds, *constraints))
    names = {int: "integer", float: "number", str: "text", bool: "true or false", UserBuffers: "mapping or name"}
    name = names[annotation] if isinstance(annotation, type) and annotation in names else str(annotation)
    limits = (_limit(bound) for bound in bounds if annotation in (int, float))
    return " ".join(filter(None, (name, *limits)))


def _limit(bound: object) -> str:
    for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        if hasattr(bound, attribute):
            return f"{sign} {getattr(bound, attribute)}"
    return ""


def _default(info: FieldInfo) -> str:
    if info.default is PydanticUndefined:
        return "required"
    if info.default == ():
        return "empty"
    return f"`{_yaml(info.default)}`"


def _yaml(value: object) -> str:
    """A default as it would be written in a recipe: 1.0e-05, not 1e-05, which YAML 1.1 reads as text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text.replace("e-", ".0e-") if isinstance(value, float) and "e-" in text and "." not in text else text


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


BLOCKS: dict[str, Callable[[], str]] = {
    "recompute modules": lambda: (
        f"Modules: {', '.join(f'`{name}` ({row.reexecutes})' for name, row in MODULES.items())}."
    ),
    "settings": _settings,
    "user buffers": _user_buffers,
    "keys of a sweep file": _sweep_keys,
    "sweep files": _sweep_files,
    "keys of a suite": _suite_keys,
    "suites": _suite_files,
}
"""What stands between the marks of the README, by the name in the mark."""

if __name__ == "__main__":
    README = recipes_dir() / "README.md"
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
