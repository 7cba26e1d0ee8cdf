"""The throughput that a training log has itself, beside ours."""

from dataclasses import replace

import pytest

from harness.judging.coverage import own_throughput, throughput_text
from harness.judging.derive import derive
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


@pytest.mark.parametrize(
    ("factor", "told"), [(1.0, "equal to ours"), (1.003, "+0.3 % from ours"), (0.9, "-10.0 % from ours")]
)
def test_it_is_told_how_far_it_is_from_ours(logged, factor, told):
    assert told in throughput_text(*logged(factor))


def test_only_steps_of_the_window_count(logged):
    record, metrics = logged(1.0)
    start, end = metrics.step_time_s.window
    assert own_throughput(record, metrics).n == end - start


def test_where_ours_is_not_known_nothing_is_compared(logged):
    record, metrics = logged(1.0)
    unknown = replace(metrics, tflops_per_gpu=None)
    assert (
        throughput_text(record, unknown)
        == f"the log's own throughput is {metrics.tflops_per_gpu.median:.2f} TFLOP/s/GPU"
    )


def test_a_run_of_our_own_has_none(make_record):
    record = make_record()
    assert throughput_text(record, derive(record)) is None
