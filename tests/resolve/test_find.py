import shutil
from pathlib import Path

import pytest

from harness.errors import BadRequestError, closest
from harness.resolve.find import all_recipe_files, find_recipe_file, open_recipe, recipes_dir
from tests.commands import refused


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    root = tmp_path / "recipes"
    for family, name in (("llama", "llama3_8b"), ("gpt", "gpt3_175b")):
        (root / family).mkdir(parents=True)
        shutil.copy(recipes_dir() / family / f"{name}.yaml", root / family)
    return root


def test_a_name_is_found_in_any_case_in_the_checkout_and_a_missing_directory_is_reported(tmp_path: Path):
    assert find_recipe_file(" LLaMA3_8B ").label == "recipes/llama/llama3_8b.yaml"
    assert recipes_dir() == Path(__file__).parents[2] / "recipes"
    refused(lambda: recipes_dir(tmp_path / "none"), str(tmp_path / "none"))


def test_finding_a_name_opens_no_file_and_suites_are_not_recipes(directory: Path):
    (directory / "suites").mkdir()
    (directory / "suites" / "nightly.yaml").write_text("a: 1\n", encoding="utf-8")
    assert [f.name for f in all_recipe_files(directory)] == ["gpt3_175b", "llama3_8b"]
    (directory / "llama" / "broken.yaml").write_text("a: [", encoding="utf-8")
    assert find_recipe_file("gpt3_175b", directory).path == directory / "gpt" / "gpt3_175b.yaml"


@pytest.mark.parametrize(
    ("name", "family", "names"),
    [
        ("llama3_8", None, ["'llama3_8'", "'llama3_8b'"]),
        ("llama3_8b", "gpt", ["-m gpt: ", "'llama3_8b'", "-m llama"]),
        ("../secret", None, ["-mr ../secret: ", "mbr-perf recipes list"]),
    ],
)
def test_an_unknown_name_is_reported_with_its_nearest(directory: Path, name: str, family: str | None, names: list[str]):
    refused(lambda: open_recipe(name, directory, family), *names)


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("llama3_7b", ["llama3_70b", "llama3_8b"]),
        ("llama3_8bb", ["llama3_8b", "llama3_70b"]),
        ("llama31_4050b", ["llama31_405b"]),
        ("mistral_8x7b", ["mixtral_8x7b"]),
    ],
)
def test_names_of_other_numbers_are_near(typed: str, nearest: list[str]):
    known = ["llama31_405b", "llama3_70b", "llama3_8b", "mixtral_8x7b", "qwen3_30b_a3b"]
    assert closest(typed, known, len(nearest)) == nearest


@pytest.mark.parametrize("name", ["a b", "", "-x", "x" * 65, "naïve"])
def test_a_name_has_one_alphabet(directory: Path, name: str):
    refused(lambda: find_recipe_file(name, directory), "recipe name")


def test_a_path_to_ones_own_file_works_and_its_family_is_checked(write):
    path = write()
    assert open_recipe(str(path)).header.name == "tiny"
    refused(lambda: open_recipe(str(path), family="llama"), "-m llama: ", "'tiny'", "'mine'")


def test_the_name_inside_a_shipped_file_is_its_own(directory: Path):
    (directory / "llama" / "llama3_8b.yaml").rename(directory / "llama" / "other.yaml")
    refused(lambda: open_recipe("other", directory), "'llama3_8b'", "'other'")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nemotron_3_nano", "Mamba layers"), ("nemotronh_56b", "Mamba layers"), ("qwen35_vl_35b_a3b", "vision encoder"),
     ("qwen3_vl_30b_a3b", "vision encoder"), ("glm52", "sparse attention"), ("wan_14b", "diffusion")],
)  # fmt: skip
def test_models_that_cannot_be_built_are_refused_by_name_with_the_reason(name, reason):
    with pytest.raises(BadRequestError, match=f"recipe '{name}': the model .*{reason}"):
        find_recipe_file(name)
