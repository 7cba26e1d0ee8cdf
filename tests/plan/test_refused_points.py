"""Shipped points that the rules of megatron-core 0.16.1 refuse: the command that a refusal names works."""

import json
import shlex

import pytest

from harness.recipes.rows import refusals
from harness.resolve.find import all_recipe_files, open_recipe, recipes_dir

REFUSED = ("-mr", "deepseek_v3", "-g", "gb200", "-c", "fp8_mx")


def points():
    """Yield the options of every refused point of Blackwell."""
    for file in all_recipe_files(recipes_dir()):
        recipe = open_recipe(file.name)
        for point in recipe.points:
            key = point.key
            if "b" in key.gpu and refusals(recipe, point):
                variant = ("-cv", key.variant) if key.variant else ()
                yield "-mr", file.name, "-g", key.gpu, "-c", key.compute_dtype, "-ng", str(key.num_gpus), *variant


def named(answer):
    """Return the arguments of the command that a refusal ends with."""
    assert answer.code == 2
    return shlex.split(answer.err.splitlines()[-1])[1:]


def test_one_command_avoids_all_rules_that_refuse_a_point(mbr_perf):
    refused = mbr_perf("plan", *REFUSED)
    assert [line[7:10] for line in refused.err.splitlines() if line.startswith("error: ")] == ["G18", "G27"]
    cure = json.loads(mbr_perf("check", *REFUSED, "--no_megatron", "--json").out)["legal_with"]
    assert named(refused) == ["plan", *REFUSED, *cure]
    assert named(mbr_perf("plan", *REFUSED, "--search")) == ["plan", *REFUSED, "--search", *cure]
    assert mbr_perf("check", *REFUSED, "--no_megatron", *cure).code == 0


def test_other_modules_are_named_where_one_of_them_hangs(mbr_perf):
    command = named(mbr_perf("run", "-mr", "gpt3_175b", "-g", "a100", "--dryrun"))
    assert command[-2:] == ["--recompute", "core_attn"]
    assert mbr_perf(*command).code == 0
    typed = mbr_perf("run", "-mr", "gpt3_175b", "-g", "a100", "--recompute_modules", "core_attn,mlp", "--dryrun")
    assert (typed.code, "mbr-perf run" in typed.err) == (2, False)


@pytest.mark.slow
def test_the_command_that_a_refused_point_names_plans_it(mbr_perf):
    found = [*points()]
    assert len(found) > 15
    for options in found:
        answer = mbr_perf(*named(mbr_perf("plan", *options)))
        assert (answer.code, answer.out[:4]) == (0, "Use "), options
