"""Figures in the ranks' records that cannot be true are named with their rank; unusual ones are no doubt."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.experiment.experiment import BridgeEngine
from harness.history.record import history_record
from harness.judge.compare import compare_runs
from harness.judge.derive import derive
from harness.judge.gate import Verdict
from harness.judge.plausible import doubts_of, impossible
from harness.judge.promotion import promote
from harness.records.goldens import GateOptions, GoldenSearch
from harness.records.rank import Coordinates, Device, Failure, MemoryRecord, MemorySeries, StepRecord
from harness.records.run import REPLAYED
from harness.units import GIB
from tests.conftest import LLAMA3_70B, build_steps

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def changed(record, at, /, **changes):
    """The record with one rank's fields replaced."""
    ranks = tuple(own.model_copy(update=changes) if own.rank == at else own for own in record.ranks)
    return record.model_copy(update={"ranks": ranks})


def memory(**peaks):
    return MemoryRecord(meter="cuda", **peaks)


def steps(seconds, numbers=range(50)):
    return tuple(StepRecord(step=step, seconds=seconds, loss=11.0 - step / 10) for step in numbers)


def lost(loss):
    """Fifty steps; step 7 has this loss."""
    return tuple(step.model_copy(update={"loss": loss}) if step.step == 7 else step for step in build_steps([2.5] * 50))


def ended(all_steps, every_s):
    return tuple(step.model_copy(update={"ended_s": 100 + every_s * step.step}) for step in all_steps)


A100 = Device(kind="cuda", name="NVIDIA A100-SXM4-80GB")
SERIES = MemorySeries(what="a test", interval_s=0.1, max_bytes=(GIB, 51 * GIB))
DAMAGE = {
    "world size": (1, {"world_size": 8}, "rank 1: world_size is 8, the run has 32 GPUs"),
    "unfinished": (2, {"finished": False}, "rank 2: did not finish (finished: false), although the run ended well"),
    "other number": (3, {"rank": 4}, "rank 4: recorded 2 times"),
    "no such rank": (3, {"rank": 32}, "rank 32: no such rank in a run of 32 GPUs"),
    "twice": (0, {"steps": steps(2.5, [*range(50), 7])}, "rank 0: step 7 is recorded more than once"),
    "too short": (0, {"steps": steps(9e-7)}, "rank 0: a step of less than 1 us is not possible"),
    "zero": (5, {"memory": memory(max_allocated_bytes=0)}, "rank 5: peak allocated is 0 bytes"),
    "negative": (5, {"memory": memory(max_reserved_bytes=-1)}, "rank 5: peak reserved is -1 bytes"),
    "empty device": (6, {"memory": memory(max_device_used_bytes=0)}, "rank 6: peak device used is 0 bytes"),
    "no such stage": (4, {"coordinates": Coordinates(tp=0, pp=9, dp=0, cp=0, ep=0)}, "rank 4: pipeline stage 9 of 4"),
    "beyond the device": (
        5,
        {"memory": memory(max_allocated_bytes=80 * GIB + 1, device_total_bytes=80 * GIB)},
        "rank 5: peak allocated of 80.00 GiB is more than the device has, 80.00 GiB",
    ),
    "beyond every card": (
        5,
        {"memory": memory(max_reserved_bytes=500 * GIB)},
        "rank 5: peak reserved of 500.00 GiB is more than 1.5 times the memory of h100, 120.00 GiB",
    ),
    "step outside": (1, {"steps": steps(2.5, range(51))}, "rank 1: step 50 is recorded, which the run does not have"),
    "before the first": (
        1,
        {"steps": steps(2.5, range(-1, 50))},
        "rank 1: step -1 is recorded, which the run does not have",
    ),
    "failed": (
        2,
        {"failure": Failure(kind="error", message="boom")},
        "rank 2: failed (error), although the run ended well",
    ),
    "other stage": (
        31,
        {"coordinates": Coordinates(pp=0)},
        "rank 31: pipeline stage 0, but its number belongs to stage 3",
    ),
    "other place": (
        9,
        {"coordinates": Coordinates(pp=1)},
        "rank 9: its place is tp=0 pp=1 dp=0 cp=0 ep=0, but its number belongs to tp=1 pp=1 dp=0 cp=0 ep=0",
    ),
    "another GPU": (7, {"device": A100}, "rank 7: ran on NVIDIA A100-SXM4-80GB, the run is of h100"),
    "an unknown GPU": (
        7,
        {"device": Device(kind="cuda", name="NVIDIA H100 PCIe")},
        "rank 7: ran on NVIDIA H100 PCIe, the run is of h100",
    ),
    "no device": (7, {"device": None}, "rank 7: its device is not recorded"),
    "too large": (
        5,
        {"memory": memory(max_allocated_bytes=50 * GIB, device_total_bytes=800 * GIB)},
        "rank 5: its device has 800.00 GiB, more than 1.5 times the memory of h100",
    ),
    "failed allocations": (
        5,
        {"memory": memory(max_allocated_bytes=50 * GIB, num_ooms=2)},
        "rank 5: 2 allocations failed for lack of memory (num_ooms), although the run ended well",
    ),
    "no such place": (4, {"coordinates": Coordinates(tp=4)}, "rank 4: TP rank 4 of 4"),
    "a CPU": (
        7,
        {"device": Device(kind="cpu", name="A Processor")},
        "rank 7: its device is a CPU, the run is of h100",
    ),
    "negative counter": (5, {"memory": memory(static_bytes=-5)}, "rank 5: static_bytes is -5"),
    "no parameters": (5, {"num_parameters": 0}, "rank 5: num_parameters is 0"),
    "negative norm": (
        0,
        {"steps": tuple(step.model_copy(update={"grad_norm": -1.0}) for step in build_steps([2.5] * 50))},
        "rank 0: the gradient norm of step 0 is -1, but a norm is not negative",
    ),
    "negative work": (5, {"counted_flops_per_step": -1}, "rank 5: counted_flops_per_step is -1"),
    "reserved too little": (
        5,
        {"memory": memory(max_allocated_bytes=50 * GIB, max_reserved_bytes=49 * GIB)},
        "rank 5: peak reserved of 49.00 GiB is less than peak allocated, 50.00 GiB",
    ),
    "half of its stage": (
        5,
        {"memory": memory(max_allocated_bytes=25 * GIB)},
        "rank 5: peak allocated of 25.00 GiB is less than half of that of another rank of its stage, 54.02 GiB",
    ),
    "divided": (
        3,
        {"steps": ended(build_steps([0.0025] * 50), every_s=2.5)},
        "rank 3: the steps after the first took 122.5 ms together, but 2 min 02 s passed between the ends of the first and the last step",
    ),
    "too short to count": (0, {"steps": steps(5e-324)}, "rank 0: a step of less than 1 us is not possible"),
    "held after the setup": (
        5,
        {"memory": memory(max_allocated_bytes=50 * GIB, after_setup_bytes=51 * GIB)},
        "rank 5: peak allocated is 50.00 GiB, but the rank held 51.00 GiB after the setup (after_setup_bytes)",
    ),
    "held between steps": (
        5,
        {"memory": memory(max_allocated_bytes=50 * GIB, static_bytes=51 * GIB)},
        "rank 5: peak allocated is 50.00 GiB, but the rank held 51.00 GiB between steps (static_bytes)",
    ),
    "held in its timeline": (
        5,
        {"memory": memory(max_allocated_bytes=50 * GIB, timeline=SERIES)},
        "rank 5: peak allocated is 50.00 GiB, but the rank held 51.00 GiB in its timeline",
    ),
    "no fp32": (30, {"steps": lost(1e308)}, "rank 30: the loss of step 7 is 1e+308, beyond the range of fp32 (3.4e38)"),
    "no entropy": (30, {"steps": lost(0.0)}, "rank 30: the loss of step 7 is 0, but a cross-entropy is greater than 0"),
    "no loss": (
        30,
        {"steps": lost(None)},
        "rank 30: step 7 has no loss, although the last pipeline stage computes one in each step",
    ),
    "another host": (9, {"hostname": "node7"}, "rank 9: ran on node7, but the other ranks of its node ran on node0"),
    "beyond the limit": (
        5,
        {"memory": memory(max_allocated_bytes=50 * GIB, limit_bytes=50 * GIB - 1)},
        "rank 5: peak allocated of 50.00 GiB is more than the rank's memory limit, 50.00 GiB",
    ),
    "reserved beyond the limit": (
        5,
        {"memory": memory(max_reserved_bytes=50 * GIB, limit_bytes=40 * GIB)},
        "rank 5: peak reserved of 50.00 GiB is more than the rank's memory limit, 40.00 GiB",
    ),
    "milliseconds": (
        0,
        {"steps": steps(2500.0)},
        "the steps take 2083 min 20 s together, the whole run took 2 min 18 s",
    ),
    "below weights": (
        9,
        {"memory": memory(max_allocated_bytes=1 << 30)},
        "rank 9: peak allocated of 1.00 GiB is less than the rank's parameters, which have at least 3.98 GiB",
    ),
}


ON_CPU = {
    "a GPU": (1, {"device": A100}, "rank 1: ran on NVIDIA A100-SXM4-80GB, the run is of cpu"),
    "a thousand times faster": (
        1,
        {"steps": build_steps([2.4e-5] * 10)},
        "rank 1: a step of 2.4e-05 s is too short for 100,000,000 FLOPs: no processor does more than 4 TFLOP/s with OMP_NUM_THREADS=1",
    ),
    "a thousand times larger": (
        1,
        {"memory": memory(max_allocated_bytes=124 * GIB, host_max_rss_bytes=GIB)},
        "rank 1: peak allocated of 124.00 GiB is more than 4 times the most that the process held (host_max_rss_bytes), 4.00 GiB",
    ),
    "no work": (
        0,
        {"counted_flops_per_step": 0},
        "rank 0: counted 0 FLOPs in a step, but the matrix multiplications of its layers need 91,226,112",
    ),
    "hardly any work": (
        0,
        {"counted_flops_per_step": 45_613_055},
        "rank 0: counted 45,613,055 FLOPs in a step, but the matrix multiplications of its layers need 91,226,112",
    ),
}


@pytest.mark.parametrize("case", [*DAMAGE, *ON_CPU])
def test_an_impossible_figure_is_named_and_is_neither_an_improvement_nor_a_golden(
    make_record, make_spec, make_golden, case
):
    rank, changes, sentence = (DAMAGE | ON_CPU)[case]
    where = {"environment": {"OMP_NUM_THREADS": "1"}}
    whole = make_record(make_spec(gpu="cpu") if case in ON_CPU else None, seconds=2.5, provenance=where)
    assert impossible(whole, derive(whole)) == ()
    record = changed(whole, rank, **changes)
    assert sentence in impossible(record, derive(record))

    golden = make_golden(whole, {"tflops_per_gpu": 1.0, "peak_allocated_bytes": 10**12})
    search = GoldenSearch(golden, Path("golden.json"))
    _, comparison = compare_runs([record], search, GateOptions())
    assert comparison.outcome is Verdict.INCONCLUSIVE
    reasons = [finding.reason for finding in comparison.findings if finding.threshold]
    assert reasons
    assert all(f"suspect: {sentence}" in reason for reason in reasons)
    assert compare_runs([record], GoldenSearch(None, None, "none"), GateOptions())[1].outcome is Verdict.INCONCLUSIVE
    with pytest.raises(BadRequestError) as refused:
        promote([record], reason="r", author="a", now=NOW)
    assert sentence in str(refused.value)
    assert sentence in history_record(record, derive(record)).suspect


BRIDGE = BridgeEngine(version="0.4.2", forward_step="gpt_step", rest="0")
POSSIBLE = {
    "four times": ({}, {"steps": steps(2.4, range(4))}),
    "half of the processor": ({"gpu": "cpu", "num_gpus": 2}, {"steps": build_steps([2.6e-5] * 10)}),
    "half of the work": ({"gpu": "cpu", "num_gpus": 2}, {"counted_flops_per_step": 45_613_056}),
    "untouched tensors": ({"gpu": "cpu"}, {"memory": memory(max_allocated_bytes=4 * GIB, host_max_rss_bytes=GIB)}),
    "long pauses": ({"gpu": "cpu"}, {"steps": ended(build_steps([0.025] * 10), every_s=2.5)}),
    "rounded ends": ({"gpu": "cpu"}, {"steps": ended(build_steps([2e-4] * 10), every_s=0.1)}),
    "no ends": ({"gpu": "cpu"}, {"steps": (*ended(build_steps([0.0025] * 9), every_s=9.0), build_steps([0.0025] * 10)[9])}),
    "diverged": ({}, {"steps": lost(3.4e38)}),
    "first stage": (
        {"gpu": "cpu", "num_gpus": 2, "parallelism": {"pipeline_model_parallel_size": 2}},
        {"steps": lost(None)[:10]},
    ),
    "skipped by Bridge": ({"engine": BRIDGE}, {"steps": lost(None)}),
    "another loss of Bridge": ({"engine": BRIDGE}, {"steps": lost(-1.0)}),
    "at the limit": ({}, {"memory": memory(max_reserved_bytes=40 * GIB, limit_bytes=40 * GIB)}),
    "others on the device": ({}, {"memory": memory(max_device_used_bytes=60 * GIB, limit_bytes=40 * GIB)}),
    "small device": ({}, {"memory": memory(max_reserved_bytes=60 * GIB, max_device_used_bytes=50 * GIB)}),
}  # fmt: skip


@pytest.mark.parametrize("case", POSSIBLE)
def test_a_figure_that_is_only_unusual_is_no_doubt(make_record, make_spec, case):
    settings, changes = POSSIBLE[case]
    spec = make_spec(**{"num_gpus": 1, "parallelism": {}} | settings)
    where = {"environment": {"OMP_NUM_THREADS": "1"}}
    record = changed(make_record(spec, seconds=2.5, provenance=where), 0, **changes)
    assert impossible(record, derive(record)) == ()


def test_a_rank_executes_its_share_of_its_own_stage_unless_it_is_replayed(make_record, make_spec):
    """Two of four layers: 3 * 2 * 128 tokens * 2 * 55,296 weights; the last of two stages also has the logits."""
    spec = make_spec(gpu="cpu", parallelism={"pipeline_model_parallel_size": 2})
    record = changed(make_record(spec), 0, counted_flops_per_step=42_467_327, hostname="node7")
    expected = (
        "rank 0: counted 42,467,327 FLOPs in a step, but the matrix multiplications of its layers need 84,934,656"
    )
    assert expected in impossible(record, derive(record))
    replayed = record.model_copy(update={"notes": (f"{REPLAYED}elsewhere",)})
    assert impossible(replayed, derive(replayed)) == ()


def test_exchanged_rank_files_are_named(make_record):
    whole = make_record(seconds=2.5)
    ranks = [*whole.ranks]
    ranks[1], ranks[2] = ranks[2], ranks[1]
    record = whole.model_copy(update={"ranks": tuple(ranks)})
    assert impossible(record, derive(record)) == (
        "rank 2: its record is at the position of rank 1: files of ranks were exchanged",
        "rank 1: its record is at the position of rank 2: files of ranks were exchanged",
    )


def test_each_node_has_its_own_host_and_a_rank_of_another_node_is_named(make_record):
    record = make_record(seconds=2.5)
    for rank in range(32):
        record = changed(record, rank, hostname=f"node{rank // 8}")
    assert impossible(record, derive(record)) == ()
    exchanged = changed(changed(record, 1, hostname="node1"), 9, hostname="node0")
    assert impossible(exchanged, derive(exchanged)) == (
        "rank 1: ran on node1, but the other ranks of its node ran on node0",
        "rank 9: ran on node0, but the other ranks of its node ran on node1",
    )


def test_every_rank_has_its_own_gpu(make_record):
    record = make_record(seconds=2.5)
    own = record
    for rank in range(32):
        own = changed(own, rank, device=Device(kind="cuda", name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{rank}"))
    assert impossible(own, derive(own)) == ()
    shared = changed(own, 9, device=own.ranks[8].device)
    assert impossible(shared, derive(shared)) == ("ranks 8-9: 2 ranks name the same GPU, GPU-8",)


def test_experts_and_logs_may_have_uneven_ranks(make_record, make_spec):
    """A router gives ranks different numbers of tokens; a log reports ranks at different times."""
    moe = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 4096}
    record = make_record(make_spec(model=LLAMA3_70B | {"num_layers": 8, "moe": moe}, parallelism={}), seconds=2.5)
    uneven = changed(record, 5, memory=memory(max_allocated_bytes=25 * GIB))
    assert not [what for what in impossible(uneven, derive(uneven)) if "stage" in what]


def test_ranks_with_the_same_problem_share_a_sentence(make_record):
    record = make_record(seconds=2.5)
    for rank in (4, 5, 6, 31):
        record = changed(record, rank, finished=False)
    assert impossible(record, derive(record)) == (
        "ranks 4-6, 31: did not finish (finished: false), although the run ended well",
    )


def test_a_run_that_failed_has_partial_figures_and_no_further_doubt(make_record):
    record = changed(make_record(seconds=2.5, status="failed", failure="x"), 1, finished=False)
    assert doubts_of(record, derive(record)) == ()
