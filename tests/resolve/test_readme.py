"""recipes/README.md names every setting with its type and default, and its examples work."""

import types
from pathlib import Path
from typing import Literal, Union, get_args, get_origin

import pytest

from harness.experiment.user_buffers import UserBuffers
from harness.resolve.recipe import SECTION_MODELS, PointKey, RecipeHeader, Request
from harness.resolve.recipe_file import load_recipe
from harness.resolve.resolve import resolve, resolve_recipe
from harness.resolve.suite import ExpectedFailure
from harness.resolve.suite_file import CaseEntry, SuiteFile, read_suite
from harness.resolve.sweep_file import SweepFile, read_sweep_file
from harness.resolve.writing import scalar

README = (Path(__file__).parents[2] / "recipes" / "README.md").read_text(encoding="utf-8")
TYPES = {int: "integer", float: "number", str: "text", bool: "boolean", UserBuffers: "mapping or name"}


def below(heading: str) -> str:
    return README.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def example(heading: str) -> str:
    """The first YAML file below a heading of the README."""
    return below(heading).partition("```yaml\n")[2].partition("```")[0]


def type_text(annotation) -> str:
    if get_origin(annotation) is Literal:
        return " ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"list of {type_text(get_args(annotation)[0])}"
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(type_text(arm) for arm in get_args(annotation) if arm is not type(None))
    return TYPES.get(annotation) or type_text(get_args(annotation)[0])  # of Annotated


@pytest.mark.parametrize(
    ("heading", "model"), [("The file", RecipeHeader), ("A point", PointKey), *SECTION_MODELS.items()]
)
def test_every_setting_is_listed_with_its_type_and_default(heading, model):
    lines = [line.partition("): ")[0] for line in below(heading).splitlines() if line.startswith("- ")]
    assert lines == [
        f"- `{name}` ({type_text(info.annotation)}, {'required' if info.is_required() else f'`{scalar(info.default)}`'}"
        for name, info in model.model_fields.items()
        if f"{heading}.{name}" not in SECTION_MODELS
    ]


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Sweep files", SweepFile.model_fields),
        ("Suites", {**SuiteFile.model_fields, **CaseEntry.model_fields, **ExpectedFailure.model_fields}),
    ],
)
def test_every_word_of_a_table_is_named(heading, names):
    assert [name for name in names if f"`{name}`" not in below(heading) and name != "cases"] == []


def test_the_example_of_the_readme_runs_on_a_cpu(tmp_path: Path):
    path = tmp_path / "tiny.yaml"
    path.write_text(example("Add a recipe"), encoding="utf-8")
    resolved = resolve_recipe(load_recipe(path, "tiny.yaml"), Request(model_recipe_name="tiny", gpu="cpu"))
    assert resolved.spec.slug == "tiny.pretrain.fp32.2gpu.mlp"
    assert resolved.spec.num_microbatches == 4


def test_the_sweep_file_of_the_readme_is_one(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(example("Sweep files"), encoding="utf-8")
    sweep = read_sweep_file(str(path))
    assert (len(sweep.over["recompute"]), sweep.over["mb"], sweep.repeats) == (3, ("1", "2"), 3)


def test_the_suite_of_the_readme_is_one_and_its_cases_resolve(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(example("Suites"), encoding="utf-8")
    slugs = {case.name: resolve(case.request).spec.slug for case in read_suite(str(path)).cases}
    assert slugs == {
        "llama3_8b.none": "llama3_8b.pretrain.fp32.2gpu.none",
        "llama3_8b.mlp": "llama3_8b.pretrain.fp32.2gpu.mlp",
        "moe_under_a_limit": "mixtral_8x7b.pretrain.fp32.2gpu.none",
    }
