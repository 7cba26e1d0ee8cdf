"""Layer parts of our own compute what megatron-core's and transformer-engine's do."""

import json
from types import SimpleNamespace

import pytest
import torch

from tests.engine.conftest import RANKS, answer_of, run_forked

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]  # torch and megatron warn on import
CASES = ("multi-head", "grouped queries", "one group", "own scale", "latent attention")
HIDDEN, EPS = 32, 1e-3


@pytest.fixture(name="attention", scope="module")
def _attention(tmp_path_factory):
    """Differences between the two attentions, from a process of its own: it adapts torch to be without CUDA."""
    out = tmp_path_factory.mktemp("attention") / "out.json"
    answer_of(RANKS / "core_attention.py", out, start=run_forked)
    return json.loads(out.read_text())


@pytest.mark.parametrize("case", CASES)
def test_flash_like_attention_equals_the_one_that_keeps_its_scores(attention, case):
    differences = attention["differences"][case]
    assert set(differences) == {"output", "dq", "dk", "dv"}
    for what, figures in differences.items():
        assert figures["size"] > 0.1, what
        assert figures["difference"] < 1e-5 * max(1.0, figures["size"]), what


def test_the_output_has_the_heads_side_by_side_and_what_cannot_be_computed_is_refused(attention):
    shapes = {case: attention["differences"][case]["output"]["shape"] for case in CASES}
    assert shapes["grouped queries"] == [48, 2, 8 * 16]
    assert shapes["latent attention"] == [48, 2, 4 * 16]
    assert set(attention["refusals"]) == {"mask", "context"}


@pytest.fixture(name="norm")
def _norm():
    """Builds a norm as megatron does, and gives its weights values that are not those of a fresh one."""
    from harness.engine import cpu_backend

    cpu_backend.block_transformer_engine()
    from harness.engine.model import Norm

    def build(normalization, *, zero_centered=False, sequence_parallel=False, dtype=torch.float32):
        config = SimpleNamespace(
            normalization=normalization, layernorm_zero_centered_gamma=zero_centered,
            sequence_parallel=sequence_parallel, params_dtype=dtype,
        )  # fmt: skip
        return Norm(config=config, hidden_size=HIDDEN, eps=EPS)

    return build


def reference(x, normalization, weight, bias):
    if normalization == "RMSNorm":
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight
    centered = x - x.mean(-1, keepdim=True)
    return centered / torch.sqrt(centered.pow(2).mean(-1, keepdim=True) + EPS) * weight + bias


@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("normalization", ["RMSNorm", "LayerNorm"])
def test_norms_are_those_of_the_textbook(norm, normalization, zero_centered):
    generator = torch.Generator().manual_seed(0)
    x, scale, shift = (torch.randn(size, generator=generator) for size in ((5, 3, HIDDEN), (HIDDEN,), (HIDDEN,)))
    built = norm(normalization, zero_centered=zero_centered)
    torch.testing.assert_close(built(x), reference(x, normalization, 1.0, 0.0))  # a fresh one scales by one
    parameters = dict(built.named_parameters())
    with torch.no_grad():
        parameters["weight"].copy_(scale - 1 if zero_centered else scale)
        if "bias" in parameters:
            parameters["bias"].copy_(shift)
    torch.testing.assert_close(built(x), reference(x, normalization, scale, shift))


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("zero_centered", [False, True])
def test_weights_are_marked_for_the_reduction_over_tensor_parallel_ranks_and_have_their_precision(
    norm, zero_centered, sequence_parallel
):
    built = norm("LayerNorm", zero_centered=zero_centered, sequence_parallel=sequence_parallel)
    assert [p.sequence_parallel for p in built.parameters()] == [sequence_parallel] * 2
    assert {p.dtype for p in norm("RMSNorm", zero_centered=zero_centered, dtype=torch.bfloat16).parameters()} == {
        torch.bfloat16
    }
