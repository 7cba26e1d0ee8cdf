"""Runs become golden values only when they deserve it."""

import re
from datetime import UTC, datetime

import pytest

from harness.errors import BadRequestError
from harness.judge.promotion import PromotionOptions, promote
from harness.records.golden import GoldenMetric
from harness.records.run import REPLAYED

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def promoted(records, before=None, **changes):
    options = {"reason": "first values", "author": "someone", "now": NOW} | changes
    return promote(records, PromotionOptions(**options), before)


def repeat(make_record, number, seconds, **changes):
    return make_record(seconds=seconds, run_id=f"20260102T030405Z-llama3_70b-0000000{number}", **changes)


def test_a_golden_says_what_it_was_measured_on_by_whom_and_why(make_record):
    record = make_record(seconds=2.5)
    golden = promoted([record])
    assert (golden.kind, golden.fingerprint, golden.spec) == ("measured", record.fingerprint, record.spec.identity())
    origin = ("2026-03-04T05:06:07Z", "someone", "first values")
    assert (golden.promoted_at, golden.promoted_by, golden.reason) == origin
    assert golden.measured_on.device_name == "NVIDIA H100 80GB HBM3"
    assert golden.measured_on.versions == {"torch": "2.9.1", "megatron-core": "0.16.1", "transformer-engine": "2.11.0"}
    assert golden.metrics["step_time_s"] == GoldenMetric(value=2.5)
    assert golden.metrics["peak_allocated_bytes"] == GoldenMetric(value=58_000_000_000)
    assert (golden.run_ids, golden.num_runs) == ((record.run_id,), 1)


def test_repeats_give_medians_and_their_spread(make_record):
    records = [repeat(make_record, i, s) for i, s in enumerate((2.46, 2.54, 2.5))]
    golden = promoted(records)
    assert golden.metrics["step_time_s"] == GoldenMetric(value=2.5, relative_spread=0.016)
    assert golden.metrics["peak_allocated_bytes"] == GoldenMetric(value=58_000_000_000, relative_spread=0.0)
    assert golden.num_runs == 3


def test_on_a_cpu_the_processor_is_the_device(make_spec, make_record):
    golden = promoted([make_record(make_spec(gpu="cpu"))])
    assert golden.measured_on.device_name == "A Processor"
    assert "peak_reserved_bytes" not in golden.metrics


def refused(records, **changes):
    with pytest.raises(BadRequestError) as caught:
        promoted(records, **changes)
    return str(caught.value)


def test_every_reason_against_is_reported_at_once(make_spec, make_record):
    short = make_spec(measure={"max_steps": 3})
    text = refused([make_record(short, suspect=("GPU 3 was throttled",), status="failed", failure="rank 7 died")])
    assert "suspect: GPU 3 was throttled" in text
    assert "ended as failed: rank 7 died" in text
    assert "tflops_per_gpu: 1 measured step" in text


def test_an_unfinished_rank_is_refused(make_spec, make_rank, make_record):
    spec = make_spec(gpu="cpu")
    ranks = (make_rank(spec, 0), make_rank(spec, 1, finished=False))
    assert "finished" in refused([make_record(spec, ranks=ranks)])


def test_a_peak_that_one_rank_cannot_confirm_is_refused(make_spec, make_rank, make_record):
    spec = make_spec(gpu="cpu")
    ranks = (make_rank(spec, 0), make_rank(spec, 1, memory=None))
    text = refused([make_record(spec, ranks=ranks)])
    assert re.search("peak_allocated_bytes: .* rank 1,", text)


def test_runs_of_other_settings_machines_or_work_do_not_mix(make_spec, make_rank, make_record):
    first = repeat(make_record, 1, 2.5)
    other_settings = repeat(make_record, 2, 2.5, spec=make_spec(recompute="mlp"))
    other_machine = repeat(make_record, 3, 2.5, provenance={"device_name": "NVIDIA H100 PCIe"})
    other_work = repeat(
        make_record, 4, 2.5, ranks=tuple(make_rank(make_spec(), r, 2.5, counted_flops_per_step=1) for r in range(32))
    )
    assert "differ in settings (fingerprint)" in refused([first, other_settings])
    assert "differ in device: NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe" in refused([first, other_machine])
    assert "differ in counted FLOPs: 32, 32000000" in refused([first, other_work])


def test_one_run_twice_is_no_repeat(make_record):
    assert make_record().run_id in refused([make_record(), make_record()])


@pytest.mark.parametrize(("changes", "text"), [({"reason": " "}, "--reason "), ({"author": ""}, "--author ")])
def test_nobody_and_no_reason_promote_nothing(make_record, changes, text):
    assert text in refused([make_record()], **changes)


def test_a_golden_of_other_settings_is_replaced_only_on_request(make_record):
    run = make_record()
    golden = promoted([run])
    optimizer = {**golden.spec["optimizer"], "lr": 0.5}
    changes = {"fingerprint": "0" * 16, "spec": {**golden.spec, "optimizer": optimizer}}
    before = golden.model_copy(update=changes)
    with pytest.raises(BadRequestError, match=r": optimizer.lr: golden 0.5, here 0.0001\n"):
        promoted([run], before)
    assert promoted([run], before, replace_other=True).fingerprint == run.fingerprint


def test_a_replayed_run_measured_nothing_that_could_be_promoted(make_record):
    replayed = make_record().model_copy(update={"notes": (f"{REPLAYED}elsewhere",)})
    assert "replayed from elsewhere" in refused([replayed])


def test_repeats_that_differ_by_more_than_half_the_threshold_are_refused_with_numbers(make_record):
    records = [repeat(make_record, i, s) for i, s in enumerate((2.4, 2.6, 2.5))]
    assert re.search("tflops_per_gpu: 3 runs .* 4.0 % .* 2.5 %", refused(records))
    assert promoted(records, thresholds={"tflops_per_gpu": 0.1}).overridden == ()


def test_an_accepted_spread_is_put_on_record(make_record):
    records = [repeat(make_record, i, s) for i, s in enumerate((2.4, 2.6, 2.5))]
    (reason,) = promoted(records, accept_spread=True).overridden
    assert re.match("tflops_per_gpu: 3 runs .* 4.0 %", reason)
    wild = [repeat(make_record, i, s) for i, s in enumerate((1.0, 9.0))]
    for accepts, most in ((False, "2.5 %"), (True, "50 %")):  # one limit at a time
        limits = re.findall(r"(2.5 %|50 %)", refused(wild, accept_spread=accepts))
        assert set(limits) == {most}


def test_a_golden_keeps_window_hosts_and_the_variables_that_all_runs_shared(make_record):
    first = repeat(make_record, 1, 2.5, provenance={"environment": {"NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1"}})
    two = repeat(make_record, 2, 2.5, provenance={"environment": {"NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "2"}})
    golden = promoted([first, two])
    assert (golden.max_steps, golden.window) == (50, (35, 50))
    assert golden.measured_on.environment == {"NCCL_NVLS_ENABLE": "0"}
    assert golden.measured_on.hostnames == ("node0",)
    assert promoted([make_record()]).measured_on.environment is None


def unsteady(make_record, share):
    """One run whose steps take 2.5 s, more or less by this share in turn."""
    return make_record(seconds=[2.5 * (1 + share), 2.5 * (1 - share)] * 25)


def test_a_single_run_of_unsteady_steps_is_refused_as_repeats_are(make_record):
    text = refused([unsteady(make_record, 0.03)])
    assert re.search("tflops_per_gpu: 15 steps .* 3.1 %.* 2.5 %", text)
    assert promoted([unsteady(make_record, 0.02)]).overridden == ()


def test_the_spread_of_a_single_runs_steps_can_be_accepted(make_record):
    record = unsteady(make_record, 0.03)
    (reason,) = promoted([record], accept_spread=True).overridden
    assert re.match("tflops_per_gpu: 15 steps .* 3.1 %", reason)


def test_a_cases_own_threshold_decides_for_a_single_run_too(make_record):
    assert promoted([unsteady(make_record, 0.04)], thresholds={"tflops_per_gpu": 0.10}).overridden == ()


def test_a_run_with_too_few_steps_gives_a_golden_of_memory_only(make_spec, make_record):
    record = make_record(make_spec(measure={"max_steps": 3}))
    golden = promoted([record])
    stored = {"step_time_s", "tflops_per_gpu", "peak_allocated_bytes"} & golden.metrics.keys()
    assert (stored, len(golden.caveats)) == ({"peak_allocated_bytes"}, 1)
