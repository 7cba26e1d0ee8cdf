"""`run --ab`: the requests A and B."""

import pytest

from harness.launch.environment import this_host
from harness.records.batches import BatchLaunch
from harness.resolve.recipe import Request
from harness.run.ab import ab_request
from harness.sweep.plan import plan_sweep
from harness.sweep.request import SweepRequest
from tests.commands import refused

ALLOCATOR = "env.PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE = "expandable_segments:True"


@pytest.fixture(name="cells")
def _cells():
    """The cells of an A/B of Llama 3 8B on the CPU, without a prediction."""

    def build(text, **asked):
        request = Request(**{"model_recipe_name": "llama3_8b", "gpu": "cpu"} | asked)
        sweep = SweepRequest(asked=request, over=(), launch=BatchLaunch(launcher="replay"))
        return plan_sweep(ab_request(text, sweep, this_host()), this_host(), asks_megatron=False).cells

    return build


LLAMA = {"model_recipe_name": "llama3_70b", "task": "sft", "gpu": "h100", "compute_dtype": "fp8_cs", "num_gpus": 32}


@pytest.mark.parametrize("asked", [{}, LLAMA], ids=["a recipe without them", "a recipe with them"])
def test_a_goes_without_expandable_segments_and_b_with_them(cells, asked):
    a, b = cells(f"{ALLOCATOR}={EXPANDABLE}", **asked)
    assert (a.fate, b.fate) == ("run", "run")
    assert [cell.spec.env["PYTORCH_CUDA_ALLOC_CONF"] for cell in (a, b)] == ["", EXPANDABLE]


def test_other_settings_of_the_allocator_stay_as_they_are_in_a(cells):
    a, _ = cells(f"{ALLOCATOR}={EXPANDABLE}", env=("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64",))
    assert a.spec.env["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"


def test_a_value_with_commas_is_one_value(cells):
    a, b = cells("recompute=core_attn,layernorm", recompute="mlp")
    assert [cell.spec.recompute.text for cell in (a, b)] == ["mlp", "core_attn,layernorm"]


def test_any_option_or_setting_may_differ(cells):
    assert [cell.spec.batch.micro_batch_size for cell in cells("mb=2")] == [1, 2]
    assert [cell.spec.kernels.attention_backend for cell in cells("kernels.attention_backend=unfused")][1] == "unfused"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("recompute=none", "--ab recompute=none: "),
        ("recompute=mlp; none", "--ab recompute=mlp; none: "),
        ("mlp", "--ab mlp: no '='"),
        ("tp=x", "--ab tp: 'x' "),
    ],
)
def test_what_is_no_b_is_refused(cells, text, named):
    refused(lambda: cells(text, recompute="none"), named)


@pytest.mark.parametrize("text", ["mlp", "mb=", "mb=2; 4"])
def test_the_example_of_a_refusal_is_one_that_is_taken(cells, text):
    [problem] = refused(lambda: cells(text, recompute="none"))
    named = [word.rstrip(",") for word in problem.remedy.split() if "=" in word]
    assert named
    assert all(len(cells(example, recompute="none")) == 2 for example in named)
