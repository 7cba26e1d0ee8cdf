from pathlib import Path

from harness.recipes.meanings import MEANINGS
from harness.recipes.recipe import PointKey, RecipeHeader, Request
from harness.recipes.recipe_file import load_recipe
from harness.recipes.reference import EXAMPLE, SUITE_EXAMPLE, SWEEP_EXAMPLE, render
from harness.recipes.resolve import resolve, resolve_recipe
from harness.recipes.settings import SECTION_MODELS
from harness.recipes.suite_file import read_suite
from harness.recipes.sweep_file import read_sweep_file

README = Path(__file__).parents[2] / "recipes" / "README.md"


def test_the_readme_is_what_the_models_say():
    assert README.read_text(encoding="utf-8") == render()


def test_a_bound_follows_its_type_after_one_space():
    assert "| `bucket_size` | integer >= 1 or null |" in render()


def test_every_setting_has_a_meaning_and_no_meaning_is_left_over():
    models = {**SECTION_MODELS, "file": RecipeHeader, "point": PointKey}
    fields = {
        section: {name for name in model.model_fields if f"{section}.{name}" not in SECTION_MODELS}
        for section, model in models.items()
    }
    assert {section: set(texts) for section, texts in MEANINGS.items()} == fields


def test_the_example_of_the_readme_runs_on_a_cpu(tmp_path: Path):
    path = tmp_path / "tiny.yaml"
    path.write_text(EXAMPLE, encoding="utf-8")
    resolved = resolve_recipe(load_recipe(path, "tiny.yaml"), Request(model_recipe_name="tiny", gpu="cpu"))
    assert resolved.spec.slug == "tiny.pretrain.fp32.2gpu.core_attn"
    assert resolved.spec.num_microbatches == 4


def test_the_sweep_file_of_the_readme_is_one(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(SWEEP_EXAMPLE, encoding="utf-8")
    sweep = read_sweep_file(str(path))
    assert (len(sweep.over["recompute"]), sweep.over["mb"], sweep.repeats) == (3, ("1", "2"), 3)


def test_the_suite_of_the_readme_is_one_and_its_cases_resolve(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(SUITE_EXAMPLE, encoding="utf-8")
    cases = read_suite(str(path)).cases
    slugs = {case.name: resolve(case.request).spec.slug for case in cases}
    assert slugs == {
        "llama3_8b.none": "llama3_8b.pretrain.fp32.2gpu.none",
        "llama3_8b.mlp": "llama3_8b.pretrain.fp32.2gpu.mlp",
        "moe_under_a_limit": "mixtral_8x7b.pretrain.fp32.2gpu.none",
    }
