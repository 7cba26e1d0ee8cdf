"""Suite files: read strictly, every fault at its line; what a case says, and parts of a suite by patterns of names."""

from datetime import date

import pytest

from harness.resolve.recipe import Request
from harness.resolve.suite import ExpectedFailure, Suite, SuiteCase, only
from harness.resolve.suite_file import read_suite
from tests.commands import refused

GOOD = """\
title: Two models
source: a test
defaults:
  repeats: 3
  owner: team-x
  thresholds: {tflops_per_gpu: 0.05}
  golden: optional
  timeout: 1800
  request: {gpu: h100, task: pretrain, recompute: core_attn, env: ["A=1", "B=1"]}
cases:
  - name: dense
    request: {model_recipe_name: llama3_8b, compute_dtype: bf16, num_gpus: 8}
  - request:
      model_recipe_name: llama3_8b
      num_gpus: 8
      recompute_granularity: full
      recompute_method: block
      recompute_num_layers: 5
      env: ["B=2"]
    repeats: 5
    thresholds: {peak_allocated_bytes: 0.02}
    owner: ""
    golden: required
    timeout: 60
    expected: {outcome: oom, until: "2027-01-31", reason: the new allocator}
  - name: moe
    request: {model_recipe_name: qwen3_30b_a3b, recompute: [none, "mlp,core_attn", "full:uniform:1"]}
"""


@pytest.fixture
def read(write):
    """Read GOOD with texts replaced."""
    return lambda *changes: read_suite(str(write(*changes, text=GOOD, name="mine.yaml")))


def test_a_case_that_says_little_takes_the_defaults(read):
    dense = read().cases[0]
    assert dense.request == Request(
        model_recipe_name="llama3_8b", gpu="h100", task="pretrain", compute_dtype="bf16", num_gpus=8,
        recompute="core_attn", env=("A=1", "B=1"),
    )  # fmt: skip
    assert (dense.repeats, dense.owner, dense.thresholds) == (3, "team-x", {"tflops_per_gpu": 0.05})
    assert (dense.is_golden_required, dense.timeout_s, dense.expected) == (False, 1800.0, None)


def test_what_a_case_says_wins_and_its_recompute_replaces_all_of_the_default(read):
    case = read().cases[1]
    asked = case.request
    assert (asked.recompute, asked.recompute_granularity, asked.recompute_method, asked.recompute_num_layers) == (
        None, "full", "block", 5,
    )  # fmt: skip
    assert asked.env == ("A=1", "B=2")
    assert (case.repeats, case.owner, case.is_golden_required, case.timeout_s) == (5, "", True, 60.0)
    assert case.thresholds == {"tflops_per_gpu": 0.05, "peak_allocated_bytes": 0.02}
    assert case.expected == ExpectedFailure(outcome="oom", until=date(2027, 1, 31), reason="the new allocator")


def test_a_list_of_recompute_settings_is_one_case_each_and_a_name_is_made_from_what_the_request_says(read):
    suite = read()
    assert (suite.name, suite.title, suite.source) == ("mine", "Two models", "a test")
    _, unnamed, *moe = suite.cases
    assert unnamed.name == "llama3_8b.pretrain.8gpu.full-block-5"
    assert [case.name for case in moe] == ["moe.none", "moe.core_attn,mlp", "moe.full-uniform-1"]
    assert [case.request.recompute for case in moe] == ["none", "mlp,core_attn", "full:uniform:1"]
    assert read(("  - name: moe\n    request", "  - request")).cases[2].name == "qwen3_30b_a3b.pretrain.none"


def test_a_case_with_a_plan_by_layer_is_named_by_its_digest(tmp_path):
    rows = "".join(f"  - {{stage: {stage}, chunk: 0, layers: 2, setting: none}}\n" for stage in range(2))
    (tmp_path / "plan.yaml").write_text(f"recompute_plan:\n{rows}")
    path = tmp_path / "suite.yaml"
    settings = f'[none, "plan:2xmlp;2xnone", "{tmp_path / "plan.yaml"}"]'
    path.write_text(
        f"title: One\ncases:\n  - name: a\n    request: {{model_recipe_name: llama3_8b, recompute: {settings}}}\n"
    )
    names = [case.name for case in read_suite(str(path)).cases]
    assert [name[:7] for name in names] == ["a.none", "a.plan-", "a.plan-"]
    assert len({*names}) == 3


def test_without_defaults_a_case_runs_once_and_needs_a_golden(tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text("title: One\ncases:\n  - request: {model_recipe_name: llama3_8b}\n")
    [case] = read_suite(str(path)).cases
    assert (case.name, case.request.gpu, case.repeats, case.is_golden_required) == ("llama3_8b", "", 1, True)


@pytest.mark.parametrize(
    "row",
    [
        ("title:", "titel:", ":1: titel: ", "'title'"),
        ("title: Two models\n", "", "title: missing"),
        ("  repeats: 3", "  repeats: 10001", ":4: defaults.repeats: ", " 10000, ", " 10001\n"),
        ("  repeats: 3", "  num_gpus: 8", ":4: defaults.num_gpus: ", "request"),
        ("{tflops_per_gpu: 0.05}", "{tflops: 0.05}", ":6: defaults.thresholds.tflops: "),
        ("timeout: 60", "timeout: 0", ":24: cases[1].timeout: ", " 0, "),
        ("gpu: h100", "gpu: h1000", ":9: defaults.request.gpu: ", "'h1000'", "'h100'"),
        ("recompute: core_attn", "recompute: core_atn", "'core_atn'"),
        ("recompute: core_attn", "recompute: [none]", "defaults.request.recompute: "),
        ("name: dense", "name: a/b", ":11: cases[0].name: 'a/b' "),
        ("name: dense", f"name: {'x' * 101}", "at most 100 letters"),
        ("model_recipe_name: llama3_8b, c", "model_recipe_name: llama3_8, c",
         ":12: cases[0].request.model_recipe_name: ", "'llama3_8'", "'llama3_8b'"),
        ("model_recipe_name: llama3_8b, c", "c", ":12: cases[0].request.model_recipe_name: missing"),
        ("recompute_method: block", "recompute_modules: mlp", "--recompute_modules mlp cannot"),
        ('until: "2027-01-31"', 'until: "31.1.2027"', ":25: cases[1].expected.until: ", "'31.1.2027'"),
        ("reason: the new allocator", 'reason: ""', ":25: cases[1].expected.reason: "),
        ('[none, "mlp,core_attn", "full:uniform:1"]', "[]", ":27: cases[2].request.recompute: "),
        ('"full:uniform:1"]', '"core_attn,mlp"]', ":26: cases[2].name: 'moe.core_attn,mlp' ", "line 26"),
    ],
)  # fmt: skip
def test_a_fault_is_reported_at_its_line(read, row):
    old, new, *names = row
    refused(lambda: read((old, new)), *names, num=None)


def test_two_cases_whose_names_differ_in_case_only_are_refused(read):
    changes = ("name: moe", "name: DENSE"), ('[none, "mlp,core_attn", "full:uniform:1"]', "none")
    refused(lambda: read(*changes), "cases[2].name: 'DENSE' ", "line 11")


def test_a_suite_without_cases_is_refused(tmp_path):
    for text, message in (("title: x\n", "cases: missing"), ("title: x\ncases: []\n", ":2: cases: ")):
        (tmp_path / "x.yaml").write_text(text)
        refused(lambda: read_suite(str(tmp_path / "x.yaml")), message)


def test_every_fault_of_a_file_is_reported_at_once(read):
    changes = ("repeats: 5", "repeats: none"), ("team-x", "7"), ("name: moe", "name: a b")
    refused(lambda: read(*changes), ":5: defaults.owner", ":20: cases[1].repeats", ":26: cases[2].name", num=3)


def test_a_suite_is_found_by_its_name_and_its_requests_know_where_recipes_are(tmp_path):
    for folder, name, text in (("suites", "mine", GOOD), ("llama", "llama3_8b", ""), ("qwen", "qwen3_30b_a3b", "")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.yaml").write_text(text)
    assert {case.request.recipes_dir for case in read_suite("mine", tmp_path).cases} == {tmp_path}
    refused(lambda: read_suite("mime", tmp_path), "suite mime: ", "'mine'")


def suite_of(*names):
    cases = (SuiteCase(name=name, request=Request(model_recipe_name=name, gpu="cpu")) for name in names)
    return Suite(name="mine", title="Mine", cases=tuple(cases))


MODELS = suite_of("llama3_8b.bf16", "llama3_8b.fp8_cs", "llama3_70b.bf16", "qwen3_30b_a3b.bf16")


def test_patterns_name_whole_cases_in_the_order_of_the_suite_and_one_that_names_none_its_neighbours():
    found = only(MODELS, ["qwen*", "llama3_*.bf16"]).cases
    assert [case.name for case in found] == ["llama3_8b.bf16", "llama3_70b.bf16", "qwen3_30b_a3b.bf16"]
    refused(lambda: only(MODELS, ["llama3_8b"]), "--only llama3_8b: ")
    near, none = refused(lambda: only(MODELS, ["llama3_8b.bf1", "*.bf16", "zzz*"]), num=2)
    assert near.message.startswith("--only llama3_8b.bf1: ") and "llama3_8b.bf16" in near.remedy
    assert none.message.startswith("--only zzz*: ") and "llama3_8b.bf16, " in none.remedy
