"""Parts of a suite by patterns of names."""

from harness.resolve.recipe import Request
from harness.resolve.suite import Suite, SuiteCase, only
from tests.commands import refused


def suite_of(*names):
    cases = (SuiteCase(name=name, request=Request(model_recipe_name=name, gpu="cpu")) for name in names)
    return Suite(name="mine", title="Mine", cases=tuple(cases))


def names_of(suite):
    return [case.name for case in suite.cases]


MODELS = suite_of("llama3_8b.bf16", "llama3_8b.fp8_cs", "llama3_70b.bf16", "qwen3_30b_a3b.bf16")


def test_patterns_name_cases_in_the_order_of_the_suite():
    assert names_of(only(MODELS, ["qwen*", "llama3_*.bf16"])) == [
        "llama3_8b.bf16", "llama3_70b.bf16", "qwen3_30b_a3b.bf16",
    ]  # fmt: skip


def test_a_pattern_stands_for_the_whole_name():
    refused(lambda: only(MODELS, ["llama3_8b"]), "--only llama3_8b: ")


def test_every_pattern_that_names_nothing_is_reported_with_its_neighbours():
    near, none = refused(lambda: only(MODELS, ["llama3_8b.bf1", "*.bf16", "zzz*"]), num=2)
    assert near.message.startswith("--only llama3_8b.bf1: ") and "llama3_8b.bf16" in near.remedy
    assert none.message.startswith("--only zzz*: ") and "llama3_8b.bf16, " in none.remedy
