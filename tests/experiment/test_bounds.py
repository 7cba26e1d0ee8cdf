"""Every size has an upper bound: one digit too many is refused with its place, before it takes memory."""

import json

import pytest
from annotated_types import Le
from pydantic import ValidationError

from harness.experiment.experiment import ExperimentSpec
from harness.experiment.layout_text import LayoutSyntaxError, parse_layout
from harness.experiment.model import MOST
from harness.records.golden import golden_text
from harness.records.goldens import read_golden
from harness.resolve.recipe import SECTION_MODELS
from tests.commands import refused

SIZES = [
    (model, name)
    for model in (ExperimentSpec, *SECTION_MODELS.values())
    for name, field in model.model_fields.items()
    if field.annotation in (int, int | None) or "Ge(ge=1)" in repr(field)
]


@pytest.mark.parametrize(("model", "name"), SIZES, ids=lambda value: getattr(value, "__name__", value))
def test_every_size_of_an_experiment_has_an_upper_bound(model, name):
    field = model.model_fields[name]
    assert any(isinstance(each, Le) for each in field.metadata) or "Le(le=" in repr(field.annotation)


@pytest.mark.parametrize(
    ("part", "most"),
    [({"num_gpus": 2**20 + 1}, MOST["gpus"]), ({"parallelism": {"pipeline_model_parallel_size": 10**9}}, MOST["gpus"])],
)
def test_a_size_above_its_bound_is_named_with_the_bound(make_spec, part, most):
    with pytest.raises(ValidationError, match=f" {most}"):
        make_spec(**part)


@pytest.mark.parametrize("text", ["Et*1000000000|L", "E(t*10000|)*10000L", f"Et*{'9' * 5000}|L"])
def test_a_layout_repeats_no_more_layers_than_a_model_can_have(text):
    with pytest.raises(LayoutSyntaxError, match=" 10000 "):
        parse_layout(text)


@pytest.mark.parametrize(("value", "bound"), [("5e-324", " 0.000000000001,"), ("1e300", f" {10**30},")])
def test_a_golden_value_out_of_bounds_is_named_with_its_bound(make_record, make_golden, tmp_path, value, bound):
    document = json.loads(golden_text(make_golden(make_record(seconds=2.5), {"tflops_per_gpu": 700.0})))
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(document).replace("700.0", value))
    refused(lambda: read_golden(path), f"{path}:1: metrics.tflops_per_gpu.value: ", bound, f" {float(value)}")


ASKED = {
    "layers": (("check", "-mr", "llama3_8b", "-g", "cpu", "--num_layers", "1000000000"), "--num_layers: must be less than or equal to 10000"),
    "set": (("check", "-mr", "llama3_8b", "-g", "cpu", "--set", f"model.num_layers={'9' * 5000}"), "it has 5000 digits"),
    "repeats": (("run", "-d", "-mr", "llama3_8b", "-g", "cpu", "--repeats", "1000000000"), "--repeats 1000000000 must be from 1 to 10,000"),
    "recipe": (("plan", "-mr", "a" * 5000, "-g", "h100"), f"-mr '{'a' * 39}... (5002 characters) is not a recipe name"),
    "rule": (("rules", "show", "a" * 5000), f"no rule '{'a' * 39}... (5002 characters)"),
    "cells": (("sweep", "-d", "-mr", "llama3_8b", "-g", "cpu", "--over", f"seq_length={','.join(map(str, range(10_001)))}"),
              "10,001 cells are too many"),
    "show": (("results", "show", "a" * 5000), "5000 characters are too long for a name or path"),
    "option": (("run", "-d", "-mr", "llama3_8b", "-g", "cpu", "--golden_values_path", "a" * 5000), "--golden_values_path aaaa"),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_the_command_line_names_place_and_bound_and_starts_nothing(mbr_perf, case):
    asked, message = ASKED[case]
    answer = mbr_perf(*asked)
    assert answer.code == 2
    assert message in answer.err
    assert "Traceback" not in answer.err and len(answer.err) < 6_000
