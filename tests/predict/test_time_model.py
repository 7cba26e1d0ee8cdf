import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.experiment.communication import group_bandwidth
from harness.experiment.gpu import GPUS
from harness.experiment.model import MoeModel
from harness.predict.compose import ChunkCost, Parameters, PassSizes, Work
from harness.predict.experts import captured
from harness.predict.step_ranges import step_spread
from harness.predict.time_model import (
    AGAIN,
    ATTENTION,
    CALL,
    COPY,
    host_seconds,
    kind_of_step,
    muon_flops,
    step_time,
    typical,
)
from harness.records.trace import OpCost

H100 = GPUS["h100"]
HOST_ADAM = json.loads((Path(__file__).parents[2] / "results" / "benchmarks" / "host_adam.json").read_text())
UPDATE = HOST_ADAM["value"]
TYPICAL = typical("h100")
ONE_SECOND_OF_GEMM = round(H100.peak_flops["bf16"] * TYPICAL.gemm_bf16)
ONE_SECOND_OF_MEMORY = round(H100.memory_bandwidth * TYPICAL.memory)
ONE_SECOND_OF_NVLINK = round(GPUS["h100"].links.nvlink * TYPICAL.link)


def op(phase="forward", kind="gemm", **figures) -> OpCost:
    return OpCost(phase=phase, kind=kind, dtype=figures.pop("dtype", "bf16"), **figures)


def chunk(*ops: OpCost) -> ChunkCost:
    return ChunkCost(
        sizes=PassSizes(0, 0, 0, 0, 0), body=PassSizes(0, 0, 0, 0, 0), persistent=0, shared=0, hidden_bytes=0,
        parameters=Parameters(), work=Work.of(ops), has_loss=False,
    )  # fmt: skip


def alone(spec_of, **changes):
    """One GPU, one micro-batch, one stage."""
    return spec_of(**{"num_gpus": 1, "parallelism": {}, "batch": {
        "micro_batch_size": 1, "global_batch_size": 1, "seq_length": 4096}} | changes)  # fmt: skip


@pytest.mark.parametrize(
    ("ops", "seconds"),
    [
        ([op(flops=ONE_SECOND_OF_GEMM)], 1),
        ([op(flops=ONE_SECOND_OF_GEMM, bytes=2 * ONE_SECOND_OF_MEMORY)], 3),
        ([op(kind="attention", flops=ONE_SECOND_OF_GEMM, bytes=9 * ONE_SECOND_OF_MEMORY)], 9),
        ([op(kind="elementwise", flops=10**18, bytes=ONE_SECOND_OF_MEMORY)], 1),
        ([op(kind="attention", flops=ONE_SECOND_OF_GEMM)], TYPICAL.gemm_bf16 / TYPICAL.attention),
        ([op(dtype="fp8", flops=ONE_SECOND_OF_GEMM)], 989.4 / 1978.9 * TYPICAL.gemm_bf16 / TYPICAL.gemm_low_precision),
        ([op(flops=ONE_SECOND_OF_GEMM), op("backward", flops=2 * ONE_SECOND_OF_GEMM)], 3),
    ],
    ids=["compute", "product", "memory", "elementwise", "attention", "fp8", "phases"],
)
def test_a_product_computes_and_moves_and_other_operations_take_the_longer_of_both(spec_of, ops, seconds):
    assert step_time(alone(spec_of), ((chunk(*ops),),)).compute_s == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize(("copied", "seconds"), [(0, 3), (1, 3), (3, 6)], ids=["none", "hidden", "longer"])
def test_copies_to_the_host_run_beside_the_computation_of_each_pass(spec_of, copied, seconds):
    """Forward computes for one second, backward for two: copies of three seconds make both take three."""
    ops = op(flops=ONE_SECOND_OF_GEMM), op("backward", flops=2 * ONE_SECOND_OF_GEMM)
    offloaded = replace(chunk(*ops), copied=round(copied * H100.host_bandwidth * COPY))
    assert step_time(alone(spec_of), ((offloaded,),)).compute_s == pytest.approx(seconds, rel=1e-5)


def test_communication_adds_up_and_overlapped_communication_hides_behind_computation(spec_of):
    spec = spec_of(num_gpus=4, parallelism={"tensor_model_parallel_size": 4}, batch={
        "micro_batch_size": 1, "global_batch_size": 1, "seq_length": 4096})  # fmt: skip
    sent = {"kind": "comm", "comm_bytes": ONE_SECOND_OF_NVLINK, "comm_group": "tp"}
    gemm = op(flops=3 * ONE_SECOND_OF_GEMM)
    waited = step_time(spec, ((chunk(gemm, op(**sent)),),)).compute_s
    hidden = step_time(spec, ((chunk(gemm, op(**sent, overlapped=True)),),)).compute_s
    assert (waited, hidden) == (pytest.approx(4, rel=1e-5), pytest.approx(3 + TYPICAL.exposed, rel=1e-5))


def with_experts(spec_of, num_experts=16, num_microbatches=1, **kernels):
    """16 experts over two nodes, one on each GPU; two per token."""
    spec = spec_of(num_gpus=16, parallelism={"expert_model_parallel_size": 16}, batch={
        "micro_batch_size": 1, "global_batch_size": 16 * num_microbatches, "seq_length": 4096}, kernels=kernels)  # fmt: skip
    moe = MoeModel(num_moe_experts=num_experts, moe_router_topk=2, moe_ffn_hidden_size=1024)
    return spec.model_copy(update={"model": spec.model.model_copy(update={"moe": moe})})


def test_tokens_of_overlapped_experts_travel_beside_another_micro_batch(spec_of):
    sent = round(GPUS["h100"].links.network * 2 * TYPICAL.network)  # half of it leaves the node
    work = chunk(op(flops=ONE_SECOND_OF_GEMM), op(kind="comm", comm_bytes=sent, comm_group="ep"))
    alone_, beside = (
        step_time(with_experts(spec_of, 16, 4, overlap_moe_expert_parallel_comm=overlaps), ((work,),)).compute_s
        for overlaps in (False, True)
    )
    assert alone_ == pytest.approx(4 * 2, rel=1e-5)
    # the first forward and the last backward pass have no other micro-batch beside them
    assert beside == pytest.approx(2 + 3 * (1 + TYPICAL.exposed), rel=1e-5)


def test_a_flex_dispatcher_sends_a_token_once_to_a_node(spec_of):
    """Of two copies per token half leave the node: one. With both experts in either node equally often, 3/4 of them remain."""
    each, once = (
        group_bandwidth(with_experts(spec_of, moe_token_dispatcher_type=kind, **more), "ep")
        for kind, more in (("alltoall", {}), ("flex", {"moe_flex_dispatcher_backend": "hybridep"}))
    )
    assert once / each == pytest.approx(1 / (3 / 4))


def test_the_host_launches_what_no_graph_captured(spec_of):
    many = chunk(op(flops=1, count=1000), op("recompute", kind="attention", flops=1, count=500))
    eager = step_time(alone(spec_of), ((many,),))
    again = AGAIN * CALL * ATTENTION * TYPICAL.launch_s
    assert eager.compute_s == pytest.approx(1000 * TYPICAL.call_s + 500 * again)
    graphs = alone(spec_of, cuda_graph={"impl": "transformer_engine", "scope": ("attn",)})
    left = step_time(graphs, ((many,),)).compute_s / eager.compute_s
    assert left == pytest.approx(1 - captured(graphs), rel=1e-5)
    assert captured(alone(spec_of, cuda_graph={"impl": "full_iteration", "scope": ()})) == 1
    assert captured(graphs) == pytest.approx(14 / 22)


def test_gpu_and_host_delay_each_other_where_both_take_as_long(spec_of):
    launched = round(1 / TYPICAL.call_s)
    work = chunk(op(flops=ONE_SECOND_OF_GEMM, count=launched))
    time = step_time(alone(spec_of), ((work,),))
    assert time.compute_s == pytest.approx(2 ** (1 / TYPICAL.norm), rel=0.02)
    graphs = alone(spec_of, cuda_graph={"impl": "full_iteration", "scope": ()})
    assert step_time(graphs, ((work,),)).compute_s == pytest.approx(1, rel=0.02)


def test_a_class_with_few_rows_takes_the_widest_range_of_its_neighbours():
    spreads = {"9.x dense": (0.9, 1.1, 20), "9.x experts": (0.8, 1.5, 4), "8.x experts": (1.0, 1.0, 12)}
    assert step_spread("9.x dense", spreads) == (0.9, 1.1, 20)
    assert step_spread("9.x dense", {"9.x dense": (1.01, 1.1, 20)}) == (0.98, 1.1, 20)  # equal settings differ by 2 %
    low, high, rows = step_spread("9.x experts", spreads)
    assert (low, high, rows) == (pytest.approx(1 / (1 + 1.25 / 4)), pytest.approx(1 + 1.25 * 0.5), 4)
    assert step_spread("10.x experts", spreads)[2] == 0
    assert step_spread("9.x experts", spreads | {"9.x short experts": (0.1, 9.0, 40)})[:2] == (low, high)


@pytest.mark.parametrize(("flops", "launches", "kind"), [(0.5, 0, "short "), (2, 0, ""), (2, 3, "host-bound ")])
def test_short_and_host_bound_steps_are_classes_of_their_own(spec_of, flops, launches, kind):
    count = max(1, round(launches / TYPICAL.call_s))
    time = step_time(alone(spec_of), ((chunk(op(flops=round(flops * ONE_SECOND_OF_GEMM), count=count)),),))
    assert kind_of_step(alone(spec_of), time) == f"9.x {kind}dense"


def test_the_slowest_stage_sets_the_pace_and_the_bubble_is_that_of_one_f_one_b(spec_of):
    spec = spec_of(num_gpus=4, parallelism={"pipeline_model_parallel_size": 4}, batch={
        "micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096})  # fmt: skip
    stages = tuple((chunk(op(flops=n * ONE_SECOND_OF_GEMM)),) for n in (1, 1, 2, 1))
    time = step_time(spec, stages)
    assert time.compute_s == pytest.approx(8 * 2, rel=1e-5)
    assert time.bubble_s == pytest.approx(3 * 5 / 4, rel=1e-5)


def test_overlapped_gradients_hide_behind_the_last_backward_pass(spec_of):
    heavy = replace(chunk(op("backward", flops=ONE_SECOND_OF_GEMM)), parameters=Parameters(dense=10**9))
    plain = spec_of(num_gpus=8, parallelism={}, batch={
        "micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096})  # fmt: skip
    overlapped = plain.model_copy(update={"ddp": plain.ddp.model_copy(update={
        "overlap_grad_reduce": True, "overlap_param_gather": True})})  # fmt: skip
    # 4 bytes of gradient and 2 of weight per parameter, 7/8 of them sent; weights have no forward pass to hide behind
    each = 10**9 * 7 / 8 / ONE_SECOND_OF_NVLINK
    assert step_time(plain, ((heavy,),)).reduction_s == pytest.approx(6 * each)
    assert step_time(overlapped, ((heavy,),)).reduction_s == pytest.approx(2 * each)


def test_weights_that_are_quantised_on_arrival_cost_6_bytes_a_parameter_more_in_the_optimizer(spec_of):
    heavy = replace(chunk(), parameters=Parameters(dense=10**9))
    shapes = {"gpu": "b200", "optimizer": {"use_distributed_optimizer": True}}
    plain, arriving = (
        step_time(alone(spec_of, compute_dtype=dtype, **shapes), ((heavy,),)).optimizer_s
        for dtype in ("bf16", "fp8_mx")
    )
    moved = GPUS["b200"].memory_bandwidth * typical("b200").memory
    assert arriving - plain == pytest.approx(6 * 10**9 / moved)


def test_a_group_inside_a_node_uses_nvlink_and_one_across_nodes_the_network(spec_of):
    spec = spec_of()  # TP 4, DP 2: a data-parallel pair lies 4 ranks apart
    assert group_bandwidth(spec, "tp") == GPUS["h100"].links.nvlink
    assert group_bandwidth(spec, "dp") == GPUS["h100"].links.nvlink
    wide = spec_of(num_gpus=256)  # DP 16: two of each node, so 7/8 of the traffic leaves it
    assert group_bandwidth(wide, "dp") == pytest.approx(GPUS["h100"].links.network / (7 / 8))


@pytest.mark.parametrize(
    ("changes", "env", "seconds"),
    [
        ({}, {}, UPDATE + 2 * 0.078125),
        ({"optimizer_offload_fraction": 0.5}, {}, (UPDATE + 2 * 0.078125) / 2),
        ({"overlap_cpu_optimizer_d2h_h2d": True}, {}, UPDATE + 0.078125),
        ({}, {"OMP_NUM_THREADS": "4"}, UPDATE / 4 + 2 * 0.078125),
        ({"optimizer_cpu_offload": False}, {}, 0),
    ],
)
def test_states_in_host_memory_cost_an_update_there_and_copies_each_way(spec_of, changes, env, seconds):
    optimizer = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True} | changes
    assert host_seconds(alone(spec_of, optimizer=optimizer, env=env), 10**9) == pytest.approx(seconds, rel=0.002)


def test_muon_multiplies_squares_of_the_shorter_side(spec_of):
    spec = alone(spec_of, optimizer={"optimizer": "muon", "use_distributed_optimizer": False})
    assert muon_flops(spec, (2.0, 0.0)) == 2 * 5 * 3 * 2 * spec.model.hidden_size


@pytest.mark.parametrize(("measured", "narrows"), [
    ({"gemm_bf16": 0.7}, False), ({"gemm_low_precision": 0.7}, True), ({"memory": 0.9}, False),
])  # fmt: skip
def test_only_the_rate_of_a_steps_own_precision_narrows_a_borrowed_range(spec_of, measured, narrows):
    spec = alone(spec_of, gpu="b200", compute_dtype="fp8_cs")
    work = ((chunk(op(dtype="fp8", flops=10**17)),),)
    before = step_time(spec, work)
    after = step_time(spec, work, replace(typical("b200"), **measured), spread=0.05, origin="a probe", made_by="probe")
    assert after.source == replace(
        before.source, kind="probe", text=f"a probe; with built-in constants, {before.source.text}"
    )
    assert before.source.kind == "borrowed"
    assert (after.low > before.low, after.high < before.high) == (narrows, narrows)
