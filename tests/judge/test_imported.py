"""The throughput that a training log has itself, beside ours."""

from dataclasses import replace

import pytest

from harness.judge.coverage import coverage_of, own_throughput, throughput_text
from harness.judge.derive import derive
from harness.judge.readings import allocated
from harness.records.run import ImportedLog, LoggedThroughput


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
    coverage = coverage_of(make_record(spec, ranks=ranks).model_copy(update={"imported": log}))
    assert coverage.peak(allocated).missing_ranks == missing
