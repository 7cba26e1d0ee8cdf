"""The files under recipes/examples are there to copy: each is read as it stands, and none is listed as a recipe."""

from pathlib import Path

import pytest

from harness.resolve.suite_file import read_suite
from harness.resolve.sweep_file import read_sweep_file

EXAMPLES = Path(__file__).parents[2] / "recipes" / "examples"


@pytest.mark.parametrize("name", ["dense", "moe"])
@pytest.mark.parametrize("gpu", ["cpu", "h100"])
def test_an_example_recipe_breaks_no_rule(mbr_perf, name, gpu):
    answer = mbr_perf("check", "-mr", EXAMPLES / f"{name}.yaml", "-g", gpu, "--no_megatron")

    assert answer.code == 0, answer.out
    assert answer.out.startswith(f"LEGAL: {name} pretrain, ")  # with an error or a warning, its words stand there


def test_examples_are_not_listed(mbr_perf):
    assert "examples" not in mbr_perf("recipes", "list").out


def test_the_example_suite_is_read():
    assert "dense_under_a_limit" in {case.name for case in read_suite(str(EXAMPLES / "suite.yaml")).cases}


def test_the_example_sweep_is_read():
    sweep = read_sweep_file(str(EXAMPLES / "sweep.yaml"))

    assert sweep.title.startswith("What does recompute save")
