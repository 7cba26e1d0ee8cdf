import re
from pathlib import Path

from harness.resolve.recipe import SECTION_MODELS, PointKey, RecipeHeader, Request
from harness.resolve.recipe_file import load_recipe
from harness.resolve.reference import BLOCKS, MEANINGS, renewed
from harness.resolve.resolve import resolve, resolve_recipe
from harness.resolve.suite_file import SuiteFile, SuiteSettings, read_suite
from harness.resolve.sweep_file import SweepFile, read_sweep_file

README = (Path(__file__).parents[2] / "recipes" / "README.md").read_text(encoding="utf-8")


def example(heading: str) -> str:
    """The first YAML file below a heading of the README."""
    return README.partition(f"## {heading}\n")[2].partition("```yaml\n")[2].partition("```")[0]


def test_the_readme_is_what_the_models_say():
    assert renewed(README) == README


def test_every_table_is_in_the_readme_and_comes_back_when_it_is_lost():
    assert set(re.findall("<!-- generated: (.*) -->", README)) == set(BLOCKS)
    emptied = re.sub(r"(<!-- generated: [a-z ]+ -->\n).*?(<!-- end -->)", r"\1\2", README, flags=re.DOTALL)
    assert len(emptied) < len(README) / 2
    assert renewed(emptied) == README


def test_a_bound_follows_its_type_after_one_space():
    assert "| `bucket_size` | integer >= 1 <= 1099511627776 or null |" in README


def test_every_setting_has_a_meaning_and_no_meaning_is_left_over():
    fields = {
        section: {name for name in model.model_fields if f"{section}.{name}" not in SECTION_MODELS}
        for section, model in SECTION_MODELS.items()
    }
    assert {section: set(texts) for section, texts in MEANINGS.items()} == fields
    own = [info for model in (RecipeHeader, PointKey, SweepFile, SuiteSettings) for info in model.model_fields.values()]
    assert all(info.description for info in own)
    assert [name for name, info in SuiteFile.model_fields.items() if not info.description] == ["defaults", "cases"]


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
    cases = read_suite(str(path)).cases
    slugs = {case.name: resolve(case.request).spec.slug for case in cases}
    assert slugs == {
        "llama3_8b.none": "llama3_8b.pretrain.fp32.2gpu.none",
        "llama3_8b.mlp": "llama3_8b.pretrain.fp32.2gpu.mlp",
        "moe_under_a_limit": "mixtral_8x7b.pretrain.fp32.2gpu.none",
    }
