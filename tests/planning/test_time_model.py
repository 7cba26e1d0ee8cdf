from dataclasses import replace

import pytest

from harness.experiment.gpu import GPUS
from harness.planning.compose import ChunkCost, Parameters, PassSizes, Work
from harness.planning.time_model import LIKELY, LINKS, group_bandwidth, step_time
from harness.records.trace import OpCost

H100 = GPUS["h100"]
ONE_SECOND_OF_GEMM = round(H100.peak_flops["bf16"] * LIKELY.gemm_bf16)
ONE_SECOND_OF_MEMORY = round(H100.memory_bandwidth * LIKELY.memory)
ONE_SECOND_OF_NVLINK = round(LINKS["h100"].nvlink * LIKELY.link)


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
        ([op(flops=ONE_SECOND_OF_GEMM, bytes=2 * ONE_SECOND_OF_MEMORY)], 2),
        ([op(kind="elementwise", flops=10**18, bytes=ONE_SECOND_OF_MEMORY)], 1),
        ([op(kind="attention", flops=ONE_SECOND_OF_GEMM)], LIKELY.gemm_bf16 / LIKELY.attention),
        ([op(dtype="fp8", flops=ONE_SECOND_OF_GEMM)], 989.4 / 1978.9 * LIKELY.gemm_bf16 / LIKELY.gemm_low_precision),
        ([op(flops=ONE_SECOND_OF_GEMM), op("backward", flops=2 * ONE_SECOND_OF_GEMM)], 3),
    ],
    ids=["compute", "memory", "elementwise", "attention", "fp8", "phases"],
)
def test_an_operation_takes_the_longer_of_computing_and_moving(spec_of, ops, seconds):
    assert step_time(alone(spec_of), ((chunk(*ops),),)).likely_s == pytest.approx(seconds, rel=1e-6)


def test_communication_adds_up_and_overlapped_communication_hides_behind_computation(spec_of):
    spec = spec_of(num_gpus=4, parallelism={"tensor_model_parallel_size": 4}, batch={
        "micro_batch_size": 1, "global_batch_size": 1, "seq_length": 4096})  # fmt: skip
    sent = {"kind": "comm", "comm_bytes": ONE_SECOND_OF_NVLINK, "comm_group": "tp"}
    gemm = op(flops=3 * ONE_SECOND_OF_GEMM)
    waited = step_time(spec, ((chunk(gemm, op(**sent)),),)).likely_s
    hidden = step_time(spec, ((chunk(gemm, op(**sent, overlapped=True)),),)).likely_s
    assert (waited, hidden) == (pytest.approx(4), pytest.approx(3))


def test_the_slowest_stage_sets_the_pace_and_the_bubble_is_that_of_one_f_one_b(spec_of):
    spec = spec_of(num_gpus=4, parallelism={"pipeline_model_parallel_size": 4}, batch={
        "micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096})  # fmt: skip
    stages = tuple((chunk(op(flops=n * ONE_SECOND_OF_GEMM)),) for n in (1, 1, 2, 1))
    time = step_time(spec, stages)
    assert time.compute_s == pytest.approx(8 * 2)
    assert time.bubble_s == pytest.approx(3 * 5 / 4)


def test_interleaving_divides_the_bubble_by_the_number_of_chunks(spec_of):
    stages = tuple((chunk(op(flops=ONE_SECOND_OF_GEMM)),) * 5 for _ in range(4))
    assert step_time(spec_of(), stages).bubble_s == pytest.approx(3 / 5 * 5)


def test_recompute_is_part_of_the_computation(spec_of):
    time = step_time(
        alone(spec_of), ((chunk(op(flops=ONE_SECOND_OF_GEMM), op("recompute", flops=ONE_SECOND_OF_GEMM)),),)
    )
    assert (time.compute_s, time.recompute_s) == (pytest.approx(2), pytest.approx(1))


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


def test_the_range_holds_the_likely_time(spec_of):
    time = step_time(alone(spec_of), ((chunk(op(flops=ONE_SECOND_OF_GEMM, bytes=ONE_SECOND_OF_MEMORY)),),))
    assert time.low_s < time.likely_s < time.high_s


def test_many_small_kernels_are_bound_by_the_host(spec_of):
    assert step_time(alone(spec_of), ((chunk(op(flops=100, bytes=100, count=100)),),)).host_bound
    assert not step_time(alone(spec_of), ((chunk(op(flops=ONE_SECOND_OF_GEMM)),),)).host_bound


def test_a_group_inside_a_node_uses_nvlink_and_one_across_nodes_the_network(spec_of):
    spec = spec_of()  # TP 4, DP 2: a data-parallel pair lies 4 ranks apart
    assert group_bandwidth(spec, "tp") == LINKS["h100"].nvlink
    assert group_bandwidth(spec, "dp") == LINKS["h100"].nvlink
    wide = spec_of(num_gpus=256)  # DP 16: two of each node, so 7/8 of the traffic leaves it
    assert group_bandwidth(wide, "dp") == pytest.approx(LINKS["h100"].network / (7 / 8))


def test_every_gpu_type_has_links():
    assert LINKS.keys() == {name for name, row in GPUS.items() if not row.is_cpu}


def test_work_is_linear():
    one, two = Work.of([op(flops=10, count=2)]), Work.of([op(flops=30, count=6)])
    assert (two - one).flops() == 20
    assert (one + one).flops() == 20
    assert list((two - two).counts) == []
