from dataclasses import replace

import pytest

from harness.experiment.gpu import GPUS
from harness.experiment.model import MoeModel
from harness.predict.assumptions import imbalance_of
from harness.predict.compose import ChunkCost, Parameters, PassSizes, Work
from harness.predict.experts import (
    GROUPED_LAUNCH_S,
    NUM_QUANTIZE_KERNELS,
    additional_products,
    at_pace,
    expert_launch_s,
    pace_of,
)
from harness.predict.time_model import step_time, typical
from harness.records.trace import OpCost

ONE_SECOND_OF_GEMM = round(GPUS["h100"].peak_flops["bf16"] * typical("h100").gemm_bf16)


@pytest.fixture
def routed(spec_of):
    def make(experts=8, topk=2, ep=8, tokens=4096, kernels=None, **moe):
        spec = spec_of(num_gpus=ep, parallelism={"expert_model_parallel_size": ep}, kernels=kernels or {}, batch={
            "micro_batch_size": 1, "global_batch_size": ep, "seq_length": tokens})  # fmt: skip
        part = MoeModel(num_moe_experts=experts, moe_router_topk=topk, moe_ffn_hidden_size=1024, **moe)
        return spec.model_copy(update={"model": spec.model.model_copy(update={"moe": part})})

    return make


def chunk(ops, copied=0) -> ChunkCost:
    return ChunkCost(
        sizes=PassSizes(0, 0, 0, 0, 0), body=PassSizes(0, 0, 0, 0, 0), persistent=0, shared=0, hidden_bytes=0,
        parameters=Parameters(), work=Work.of(ops), has_loss=False, copied=copied,
    )  # fmt: skip


def gemm(seconds: float) -> OpCost:
    return OpCost(phase="forward", kind="gemm", dtype="bf16", flops=round(seconds * ONE_SECOND_OF_GEMM))


def test_the_published_load_of_64_experts_is_found_again(routed):
    """Wang et al. 2024: 0.52 with an auxiliary loss, 0.04 with a bias; with so many tokens that chance plays no part."""
    spec = routed(experts=64, topk=6, ep=64, tokens=2**24)
    assert pace_of(spec) == pytest.approx(1.52, abs=0.01)
    assert pace_of(
        routed(experts=64, topk=6, ep=64, tokens=2**24, moe_router_enable_expert_bias=True)
    ) == pytest.approx(1.04, abs=0.002)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1.18),
        ({"ep": 2}, 1.036),
        ({"experts": 128, "topk": 8, "ep": 16}, 1.174),
        ({"experts": 256, "topk": 8, "ep": 64, "moe_router_enable_expert_bias": True}, 1.04),
        ({"tokens": 8}, 1.36),
        ({"moe_router_force_load_balancing": True}, 1.0),
        ({"ep": 1}, 1.0),
    ],
    ids=["mixtral", "few ranks", "qwen3", "bias", "few tokens", "forced", "one rank"],
)
def test_the_busiest_rank_depends_on_experts_ranks_tokens_and_balancing(routed, settings, expected):
    assert pace_of(routed(**settings)) == pytest.approx(expected, abs=0.006)


def test_neither_the_bound_of_the_memory_nor_the_capacity_is_exceeded(routed):
    few = routed(tokens=2, experts=256, topk=1, ep=256)
    assert pace_of(few) == imbalance_of(few) == 1.8
    assert pace_of(routed(kernels={"moe_expert_capacity_factor": 1.1})) == 1.1
    padded = {"moe_expert_capacity_factor": 1.5, "moe_pad_expert_input_to_capacity": True}
    assert pace_of(routed(kernels=padded)) == 1.0


def test_seconds_lie_between_those_of_both_loads_and_launches_stay(routed):
    """Experts that take 1 s at an even share take 1.18 s on a rank with 1.18 times as many tokens; traces know 1.8 times."""
    spec = routed()
    even, most = chunk([gemm(1), gemm(2)], copied=100), chunk([gemm(1.8), gemm(2)], copied=180)
    ((paced,),) = at_pace(spec, ((even,),), ((most,),))
    assert step_time(spec, ((paced,),)).compute_s == pytest.approx(2 + pace_of(spec), rel=1e-4)
    assert sum(count for _, count in paced.work) == pytest.approx(2)
    assert (paced.copied, paced.sizes) == (118, even.sizes)


def test_a_capacity_is_the_load_of_its_uneven_traces(routed):
    """Tokens beyond 1.1 times the even share are dropped, so that is what the tracer counted."""
    spec = routed(kernels={"moe_expert_capacity_factor": 1.1})
    even, most = chunk([gemm(1)]), chunk([gemm(1.1)])
    assert at_pace(spec, ((even,),), ((most,),)) == ((replace(even, work=most.work),),)


def layer_of(spec, own_experts: int) -> ChunkCost:
    """Return a layer with ``own_experts`` local experts. Half of its forward pass is recomputed."""
    traced = [OpCost(phase=phase, kind="gemm", dtype="bf16", flops=flops)
              for phase, flops in (("forward", 100), ("backward", 200), ("recompute", 50))]  # fmt: skip
    held = Parameters(dense=10**6, expert=own_experts * 3 * spec.model.hidden_size * 1024)
    return replace(chunk(traced), parameters=held)


def test_every_expert_on_the_rank_is_launched(routed, spec_of):
    """A layer with 8 experts on the rank: 2 products forward and 4 backward, each 7 times more than the trace says."""
    spec = routed(experts=64)
    layer = layer_of(spec, 8)
    assert additional_products(spec, layer) == {"forward": 14, "backward": 28, "recompute": 7}
    assert sum(additional_products(spec_of(), layer).values()) == 0
    one_by_one = spec.model.model_copy(update={"moe": spec.model.moe.model_copy(update={"moe_grouped_gemm": False})})
    assert sum(additional_products(spec.model_copy(update={"model": one_by_one}), layer).values()) == 0


@pytest.mark.parametrize(("dtype", "quantized"), [("bf16", 0), ("fp8_cs", 1), ("fp8_ds", 0), ("fp8_sc", 0)])
def test_current_scaling_quantizes_every_expert_by_itself(routed, dtype, quantized):
    """Two tensors in a forward pass and two in a backward one, each 7 times more; half of the forward pass runs again."""
    spec = routed(experts=64).model_copy(update={"compute_dtype": dtype})
    seconds = expert_launch_s(spec, layer_of(spec, 8), launch_s=1.0)
    for phase, products, tensors in (("forward", 14, 14), ("backward", 28, 14), ("recompute", 7, 7)):
        assert seconds[phase] == pytest.approx(products * GROUPED_LAUNCH_S + quantized * tensors * NUM_QUANTIZE_KERNELS)
    worked = 1.582e-3 if quantized else 0.112e-3
    assert expert_launch_s(spec, layer_of(spec, 8), launch_s=35e-6)["forward"] == pytest.approx(worked)
