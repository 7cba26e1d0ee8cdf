"""From raw steps and bytes to figures, and the throughput that a training log has itself."""

import re
from dataclasses import replace

import pytest

from harness.experiment.experiment import MeasureSpec
from harness.experiment.flops import model_flops_per_step, recompute_flops_per_step
from harness.judge.coverage import covered_peak, is_whole, own_throughput, throughput_text
from harness.judge.derive import combine, derive, summarize
from harness.judge.readings import allocated
from harness.records.metrics import BY_NAME, Peak
from harness.records.rank import Device, MemoryRecord
from harness.records.run import DeviceSample, ImportedLog, LoggedThroughput, NodeSample


@pytest.fixture(name="spec")
def _spec(make_spec):
    return make_spec(gpu="cpu")


def test_figures_are_medians_over_the_window_of_the_slowest_rank(spec, make_rank, make_record):
    fast, slow = [9.0] * 7 + [1.0, 1.0, 1.0], [9.0] * 7 + [2.0, 4.0, 3.0]
    ranks = (make_rank(spec, 0, slow), make_rank(spec, 1, fast))
    metrics = derive(make_record(spec, ranks=ranks))
    assert (metrics.step_time_s.median, metrics.step_time_s.n, metrics.step_time_s.window) == (3.0, 3, (7, 10))
    assert metrics.tokens_per_s_per_gpu.median == pytest.approx(4 * 32 / 2 / 3.0)
    assert metrics.tflops_per_gpu.median == pytest.approx(model_flops_per_step(spec) / 3.0 / 2 / 1e12)
    unknown = {name for name in metrics.problems if not BY_NAME[name].of}
    assert unknown == {"peak_reserved_bytes", "peak_device_bytes", "mfu", "hfu"}
    assert "fp32 on cpu" in metrics.problems["mfu"] == metrics.problems["hfu"]


def test_a_step_that_one_rank_lacks_is_missing(spec, make_rank, make_record):
    short = make_rank(spec, 1)
    ranks = (make_rank(spec, 0), short.model_copy(update={"steps": short.steps[:9]}))
    metrics = derive(make_record(spec, ranks=ranks))
    assert metrics.step_time_s.n == 2
    assert re.fullmatch("1 of 3 measured .* 9", metrics.problems["tflops_per_gpu"])


def test_a_rank_without_any_record_leaves_no_step_time(spec, make_rank, make_record):
    metrics = derive(make_record(spec, ranks=(make_rank(spec, 0),)))
    assert metrics.step_time_s is None
    assert re.fullmatch("3 of 3 measured .* 7", metrics.problems["step_time_s"])
    assert metrics.peak_allocated_bytes.missing_ranks == (1,)
    assert metrics.counted_flops_per_step is None


@pytest.mark.parametrize(
    ("max_steps", "window", "problem"),
    [
        (1, (1, 1), "step 1 .* step 1"),
        (3, (2, 3), r"\b1 measured step; .* 3 "),
        (10, (7, 10), "^None$"),
    ],
)
def test_too_few_steps_are_a_problem(make_spec, make_record, max_steps, window, problem):
    spec = make_spec(gpu="cpu", measure={"max_steps": max_steps})
    metrics = derive(make_record(spec))
    assert spec.measure.window == window
    assert re.search(problem, str(metrics.problems.get("tflops_per_gpu")))


def test_another_window_needs_no_new_run(spec, make_record):
    record = make_record(spec, seconds=[5.0] * 5 + [1.0] * 5)
    early = derive(record, MeasureSpec(max_steps=10, eval_time_start_step=1, eval_time_end_step=4))
    assert (early.step_time_s.median, derive(record).step_time_s.median) == (5.0, 1.0)


def test_too_few_steps_are_noted_before_the_start():
    few = MeasureSpec(max_steps=3, skip_first_percent_time=0.2).too_few_steps()
    assert "only 2 of 3 steps will count" in str(few)
    assert [MeasureSpec(max_steps=number).too_few_steps() is None for number in (5, 6, 7)] == [False, False, True]


def test_a_peak_is_the_worst_rank_with_its_stage_never_the_first(make_spec, make_rank, make_record):
    spec = make_spec()
    ranks = [make_rank(spec, rank) for rank in range(32)]
    ranks[25] = make_rank(spec, 25, memory=MemoryRecord(meter="cuda", max_allocated_bytes=70_000_000_000))
    metrics = derive(make_record(spec, ranks=tuple(ranks)))
    assert metrics.peak_allocated_bytes == Peak(70_000_000_000, rank=25, stage=3)
    assert metrics.peak_reserved_bytes == Peak(62_000_000_000, rank=0, stage=0, missing_ranks=(25,))
    assert " rank 25," in metrics.problems["peak_reserved_bytes"]


def gpu_pair(make_spec, make_rank, make_record, uuids, sampled, **sample):
    spec = make_spec(num_gpus=2, parallelism={})
    ranks = tuple(
        make_rank(spec, rank, device=Device(kind="cuda", name="H100", uuid=uuid), memory=MemoryRecord(meter="cuda"))
        for rank, uuid in enumerate(uuids)
    )
    devices = tuple(
        DeviceSample(uuid=uuid, name="H100", index=i, max_used_bytes=used, num_samples=9)
        for i, (uuid, used) in enumerate(sampled.items())
    )
    nodes = (NodeSample(hostname="node0", devices=devices, **sample),)
    return derive(make_record(spec, ranks=ranks, nodes=nodes))


def test_device_memory_is_joined_by_uuid_whatever_the_order(make_spec, make_rank, make_record):
    sampled = {"GPU-bb": 7, "GPU-AA": 5}
    metrics = gpu_pair(make_spec, make_rank, make_record, ["GPU-aa", "bb"], sampled)
    assert metrics.peak_device_bytes == Peak(7, rank=1, stage=0)


def test_no_sample_of_a_gpu_is_absence_with_a_reason_not_zero(make_spec, make_rank, make_record):
    metrics = gpu_pair(make_spec, make_rank, make_record, ["GPU-aa", "GPU-bb"], {}, error="no NVML library")
    assert metrics.peak_device_bytes is None
    assert metrics.problems["peak_device_bytes"] == "no NVML library"
    half = gpu_pair(make_spec, make_rank, make_record, ["GPU-aa", "GPU-bb"], {"GPU-aa": 5})
    assert " rank 1," in half.problems["peak_device_bytes"]


def test_utilization_counts_recompute_only_for_the_hardware(make_spec, make_record):
    spec = make_spec(recompute="full:uniform:1")
    record = make_record(spec, seconds=2.0)
    metrics = derive(record)
    per_second = 2.0 * 32 * 1978.9e12
    model, again = model_flops_per_step(spec), recompute_flops_per_step(spec, record.effective)
    assert metrics.mfu == pytest.approx(model / per_second)
    assert metrics.hfu == pytest.approx((model + again) / per_second)
    assert again > 0


def test_losses_come_from_the_lowest_rank_that_has_them(spec, make_rank, make_record):
    first = make_rank(spec, 0)
    silent = first.model_copy(update={"steps": tuple(s.model_copy(update={"loss": None}) for s in first.steps)})
    metrics = derive(make_record(spec, ranks=(silent, make_rank(spec, 1))))
    assert (metrics.loss_first, metrics.loss_last) == (11.0, 11.0 - 9 / 10)


def test_repeats_are_the_median_of_medians_and_the_highest_peak(spec, make_rank, make_record):
    runs = []
    for seconds, peak in ((1.0, 30), (5.0, 50), (2.0, 40)):
        memory = MemoryRecord(meter="profiler", max_allocated_bytes=peak)
        ranks = tuple(make_rank(spec, rank, seconds, memory=memory) for rank in range(2))
        runs.append(derive(make_record(spec, ranks=ranks)))
    together = combine(runs)
    assert (together.step_time_s.median, together.step_time_s.n, together.num_runs) == (2.0, 9, 3)
    assert together.step_time_s.stdev == pytest.approx(2.0816659994661326)
    assert together.peak_allocated_bytes.value == 50
    assert together.counted_flops_per_step == 200_000_000


def test_repeats_that_counted_different_work_are_a_problem(spec, make_rank, make_record):
    other = tuple(make_rank(spec, rank, counted_flops_per_step=7) for rank in range(2))
    together = combine([derive(make_record(spec)), derive(make_record(spec, ranks=other))])
    assert together.counted_flops_per_step is None
    assert together.problems["counted_flops_per_step"].endswith(": 14, 200000000")


def test_one_step_has_no_spread():
    assert summarize([2.0], (0, 1)).stdev is None
    assert summarize([], (0, 1)) is None


def test_a_run_is_whole_with_every_rank_and_each_of_them_finished(spec, make_rank, make_record):
    ranks = [make_rank(spec, 0), make_rank(spec, 1), make_rank(spec, 1, finished=False)]
    chosen = (ranks[:2], ranks[:1], [ranks[0], ranks[2]], [ranks[2]])
    assert [is_whole(make_record(spec, ranks=tuple(each))) for each in chosen] == [True, False, False, False]


@pytest.fixture(name="logged")
def _logged(make_record):
    """A run from a log whose own throughput is ours times ``factor`` in every step of the window."""

    def build(factor):
        record = make_record()
        metrics = derive(record)
        start, end = metrics.step_time_s.window
        value = metrics.tflops_per_gpu.median * factor
        steps = tuple(LoggedThroughput(step=step, tflops_per_gpu=value) for step in range(start, end))
        beyond = LoggedThroughput(step=end, tflops_per_gpu=1.0)
        log = ImportedLog(source_format="bridge", files=(), throughput=(*steps, beyond))
        return record.model_copy(update={"imported": log}), metrics

    return build


@pytest.mark.parametrize(("factor", "expected"), [(1.0, "+0.0"), (1.003, "+0.3"), (0.9, "-10.0")])
def test_the_difference_from_our_figure_is_reported_over_the_steps_of_the_window(logged, factor, expected):
    record, metrics = logged(factor)
    own = own_throughput(record, metrics)
    start, end = metrics.step_time_s.window
    assert (own.n, f"{expected} % from mbr-perf's value" in throughput_text(own)) == (end - start, True)


def test_where_ours_is_not_known_nothing_is_compared_and_a_run_of_our_own_has_none(logged, make_record):
    record, metrics = logged(1.0)
    text = throughput_text(own_throughput(record, replace(metrics, tflops_per_gpu=None)))
    assert text.endswith(f" {metrics.tflops_per_gpu.median:.2f} TFLOP/s/GPU")
    assert own_throughput(make_record(), metrics) is None


@pytest.mark.parametrize(
    ("sizes", "read", "missing"),
    [
        # Tensor-parallel ranks hold different parts, data-parallel ones copies.
        ({"tensor_model_parallel_size": 2}, (0, 1), ()),
        ({"tensor_model_parallel_size": 2}, (0, 2), (1, 3)),
        ({"context_parallel_size": 2}, (0,), (1, 3)),
        ({"pipeline_model_parallel_size": 2}, (0, 1), (2, 3)),
        # Experts are spread over data-parallel ranks: none of those is a copy of another.
        ({"expert_model_parallel_size": 1}, (0,), ()),
        ({"expert_model_parallel_size": 2}, (0,), (1, 2, 3)),
        ({"expert_model_parallel_size": 4}, (0, 3), (1, 2)),
    ],
)
def test_a_rank_without_a_reading_is_missing_unless_it_is_a_copy_of_one_with(
    make_spec, make_rank, make_record, sizes, read, missing
):
    spec = make_spec(num_gpus=4, parallelism=sizes)
    ranks = tuple(
        make_rank(spec, rank) if rank in read else make_rank(spec, rank, memory=None) for rank in range(spec.num_gpus)
    )
    log = ImportedLog(source_format="bridge", files=())
    record = make_record(spec, ranks=ranks).model_copy(update={"imported": log})
    assert covered_peak(record, allocated).missing_ranks == missing
