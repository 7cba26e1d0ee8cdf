"""Parts of a suite: by patterns of names, and by shards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import BadRequestError, HarnessError
from harness.resolve.recipe import Request
from harness.resolve.suite import Suite, SuiteCase
from harness.resolve.suite_selection import only, shard


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
    with pytest.raises(BadRequestError, match="--only llama3_8b: no case"):
        only(MODELS, ["llama3_8b"])


def test_every_pattern_that_names_nothing_is_reported_with_its_neighbours():
    with pytest.raises(HarnessError) as raised:
        only(MODELS, ["llama3_8b.bf1", "*.bf16", "zzz*"])
    message = str(raised.value)
    assert "--only llama3_8b.bf1: no case of suite mine matches" in message
    assert "did you mean llama3_8b.bf16 or" in message
    assert "--only zzz*: no case of suite mine matches\n  cases: llama3_8b.bf16, " in message


@given(num_cases=st.integers(0, 60), of=st.integers(1, 80))
def test_every_case_is_in_exactly_one_of_the_shards_and_shards_are_balanced(num_cases, of):
    suite = suite_of(*(f"case_{n}" for n in range(num_cases)))
    shards = [names_of(shard(suite, f"{number}/{of}")) for number in range(1, (min(of, num_cases) or of) + 1)]
    assert sorted(name for part in shards for name in part) == sorted(names_of(suite))
    sizes = [len(part) for part in shards]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "text",
    ["", "1", "1/", "/2", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1 / 2", "1.0/2", "²/3", f"1/{'9' * 5000}"],
)
def test_a_shard_that_there_is_not_is_refused(text):
    with pytest.raises(BadRequestError, match="--shard"):
        shard(MODELS, text)


def test_a_shard_that_holds_no_case_is_refused():
    with pytest.raises(BadRequestError, match=r"--shard 9/9: holds no case: there are \d cases"):
        shard(MODELS, "9/9")
