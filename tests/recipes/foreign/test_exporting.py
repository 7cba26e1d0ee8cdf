"""A job in words of other programs comes back as the same job: all shipped points, by the readers of those words."""

import copy
import json
import shlex
import tarfile
from pathlib import Path

import pytest
import yaml

from harness.recipes.find import all_recipe_files, recipes_dir
from harness.recipes.foreign.container_fields import FIELDS, container_layer, disagreements
from harness.recipes.foreign.container_file import parse_container
from harness.recipes.foreign.exporting import _ELSEWHERE, _WRITERS, as_bridge, exported, point_options
from harness.recipes.recipe_file import load_recipe
from harness.recipes.resolve import resolve_point
from harness.recipes.settings import Setting, build_spec, merge
from harness.recipes.strict_yaml import parse_yaml, plain
from tests.conftest import build_spec as small_spec

CONTAINERS = Path(__file__).parents[2] / "data" / "bridge" / "containers_067f987.tar.xz"
OURS = ("recipe", "family", "task", "gpu", "gpus_per_node", "num_gpus")


@pytest.fixture(scope="module")
def points():
    """Every shipped point that can run, by name."""
    found = {}
    for file in all_recipe_files(recipes_dir()):
        recipe = load_recipe(file.path, file.label)
        for point in recipe.points:
            if not point.key.inconsistent:
                found[f"{recipe.header.name} {point.title}"] = resolve_point(recipe, point)
    assert len(found) > 250
    return found


@pytest.fixture(scope="module")
def base():
    """A configuration of Llama 3 8B that Megatron-Bridge completed, reduced to the settings that the table reads."""
    with tarfile.open(CONTAINERS) as archive:
        document = yaml.safe_load(archive.extractfile("llama3_8b_pretrain_8gpu_h100_bf16.yaml").read())
    kept = {"_target_": document["_target_"], "env_vars": {}}
    for row in FIELDS:
        for name in row.names:
            section, _, leaf = name.partition(".")
            if leaf in (document.get(section) or {}):
                kept.setdefault(section, {})[leaf] = document[section][leaf]
    return kept


def overridden(base, words):
    """The container after Hydra's ``path=value``, ``++`` adding what is not there."""
    document = copy.deepcopy(base)
    for word in words:
        path, _, text = word.partition("=")
        value = None if text == "null" else plain(parse_yaml(text, word, with_lines=False))
        *sections, leaf = path.lstrip("+").split(".")
        at = document
        for name in sections:
            if not isinstance(at.get(name), dict):
                at[name] = {}
            at = at[name]
        at[leaf] = list(value) if isinstance(value, tuple) else value
    return parse_container(yaml.safe_dump(document), "job.yaml")


def pasted(text):
    """The words that a shell makes of the text."""
    return shlex.split(text.replace("\\\n", ""), comments=True)


def read_back(spec, container):
    own = {name: Setting(getattr(spec, name), "option") for name in OURS}
    measure = {f"measure.{name}": Setting(value, "option") for name, value in spec.measure if value is not None}
    return build_spec(merge(container_layer(container), own, measure), "job.yaml")


@pytest.mark.slow
def test_every_point_comes_back_from_its_overrides_of_bridge(points, base):
    elsewhere = {
        "model.activation_func",
        "optimizer.main_grads_dtype",
        "optimizer.exp_avg_dtype",
        "optimizer.exp_avg_sq_dtype",
    }
    for name, spec in points.items():
        words, remarks = as_bridge(spec)
        differing = disagreements(spec, read_back(spec, overridden(base, words)))
        assert {each.path for each in differing} <= elsewhere, name
        for each in differing:  # each of them is said
            assert any(each.path.partition(".")[2] in remark and str(each.ours) in remark for remark in remarks), name


def test_every_point_comes_back_from_its_recipe_file(points, tmp_path):
    path = tmp_path / "job.yaml"
    for name, spec in points.items():
        path.write_text(exported(spec, "yaml").text)
        recipe = load_recipe(path, "job.yaml")
        assert resolve_point(recipe, recipe.points[0]) == spec, name


def test_a_value_of_every_row_is_written_or_named():
    """A reader with a conversion of its own needs an inverse, or a remark on where the setting is set."""
    plain_readers = {"as_written", "whole_number", "router_dtype", "layout", "environment"}
    converting = {row.read.__name__ for row in FIELDS if row.read not in {**_WRITERS, **_ELSEWHERE}}
    assert converting <= plain_readers


def test_chosen_settings_are_written_alone():
    spec = small_spec(recompute="full:block:3", env={"A": "1", "B": "x y"})
    assert as_bridge(spec, ["recompute"]) == (
        ("model.recompute_granularity=full", "model.recompute_method=block", "model.recompute_num_layers=3",
         "model.recompute_modules=null"),
        (),
    )  # fmt: skip
    assert as_bridge(spec, ["env.B"])[0] == ('++env_vars.B="x y"',)


def test_no_recompute_is_written_with_an_empty_list():
    words, _ = as_bridge(small_spec(recompute="none"), ["recompute"])
    assert "model.recompute_modules=[]" in words
    assert "model.recompute_granularity=null" in words


def test_the_text_is_one_command_line_below_its_remarks(points):
    written = exported(points["deepseek_v3 pretrain h100 bf16 1024 GPUs"], "bridge")
    comments = [line for line in written.text.splitlines() if line.startswith("#")]
    assert tuple(pasted(written.text)) == written.words
    assert "# the number of GPUs is no override: -ng 1024" in comments


@pytest.mark.parametrize(
    ("point", "options"),
    [
        ("llama3_8b", {}),
        ("llama3_70b.sft.h100.fp8_cs.32", {"task": "sft", "gpu": "h100", "compute_dtype": "fp8_cs", "num_gpus": 32}),
        ("llama3_8b.library.b200", {"variant": "library", "gpu": "b200"}),
        ("./my.yaml", {}),
    ],
)
def test_a_point_is_split_into_options(point, options):
    given = dict.fromkeys(("model_recipe_name", "task", "gpu", "compute_dtype", "num_gpus", "variant"))
    name = point if point.startswith(".") else point.partition(".")[0]
    assert point_options(point, given) == {"model_recipe_name": name, **options}


def test_the_command_prints_what_can_be_pasted(mbr_perf):
    answer = mbr_perf("recipes", "export", "llama3_70b.sft.h100.fp8_cs.32", "--as", "bridge", "--recompute", "mlp")
    assert answer.code == 0
    assert "model.recompute_modules=[mlp]" in pasted(answer.out)
    chosen = mbr_perf(
        "recipes", "export", "llama3_8b", "-g", "h100", "-c", "bf16", "-ng", "8", "--as", "yaml", "--json"
    )
    assert json.loads(chosen.out)["text"].startswith("name: llama3_8b\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama3_8b", "--as", "yml", "-g", "cpu"], "did you mean 'yaml'?"),
        (["llama3_8b.h100.b200", "--as", "yaml"], "h100 and b200 are both its gpu"),
        (["llama3_8b.h100", "-g", "b200", "--as", "yaml"], "llama3_8b.h100 contradicts --gpu b200"),
        (["--as", "yaml"], "the job is missing"),
    ],
)
def test_what_cannot_be_exported_is_refused(mbr_perf, words, message):
    answer = mbr_perf("recipes", "export", *words)
    assert (answer.code, message in answer.err) == (2, True)
