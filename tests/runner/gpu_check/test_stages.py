"""What gpu-check finds on a machine where all is well, and where one thing is not."""

import pytest

from harness.runner.gpu_check.stages import oversize, sampler_overhead, survive_oom, train_settings, weigh_sampler

FEW = ("mlp", "full:uniform:1")


def verdicts(cases):
    return {case.name: case.verdict for case in cases}


def failed(case):
    return [check.name for check in case.checks if check.verdict == "fail"]


def test_every_setting_passes_where_all_is_well(machine, shape):
    cases = list(train_settings(machine(), shape("dense"), FEW))
    assert verdicts(cases) == {"dense.none": "pass", "dense.mlp": "pass", "dense.full-uniform-1": "pass"}
    assert [check.name for check in cases[-1].checks] == [
        "trained", "memory_measured", "memory_in_order", "recompute_acts", "same_losses", "peak_not_above",
    ]  # fmt: skip
    figures = cases[-1].figures
    assert (figures.peak_allocated_bytes, figures.peak_reserved_bytes, figures.peak_device_bytes) == (
        8 * 10**9, 9 * 10**9, 20 * 10**9,
    )  # fmt: skip
    assert (figures.step_time_s, figures.loss_first) == (0.1, 10.4)


@pytest.mark.parametrize(
    ("fault", "setting", "check"),
    [
        ("reserved_above_device", "none", "memory_in_order"),
        ("other_layers", "mlp", "recompute_acts"),
        ("other_loss", "mlp", "same_losses"),
        ("full_costs_more", "full:uniform:1", "peak_not_above"),
        ("crash", "mlp", "trained"),
    ],
)
def test_what_goes_wrong_fails_its_own_check_only(machine, shape, fault, setting, check):
    cases = {case.recompute: case for case in train_settings(machine(fault), shape("dense"), (setting,))}
    assert failed(cases[setting]) == [check]


def test_a_crash_is_told_in_the_products_own_words(machine, shape):
    cases = list(train_settings(machine("crash"), shape("dense"), ("mlp",)))
    assert cases[1].failures == ("trained: exit 3, no record: it fell over",)


def test_an_oom_must_be_recorded_and_the_next_run_be_normal(machine, shape):
    cases = list(survive_oom(machine(), shape("dense")))
    assert verdicts(cases) == {"dense.oom": "pass", "dense.after_oom": "pass"}
    assert cases[0].checks[1].found == "oom of rank 0 in forward_backward of step 0, asking for 953.67 MiB"


def test_a_run_that_fits_after_all_is_no_oom(machine, shape):
    oom = next(survive_oom(machine("oom_fits"), shape("dense")))
    assert failed(oom) == ["recorded_as_oom", "says_where"]


@pytest.mark.parametrize("total_gb", [24, 80, 141, 288])
def test_an_oversized_request_needs_more_than_the_gpu_and_its_weights_less(machine, shape, total_gb):
    target = machine(total_bytes=total_gb * 10**9).target
    options = dict(zip(*[iter(oversize(target, shape("dense")))] * 2, strict=True))
    layers, samples = int(options["--num_layers"]), int(options["--micro_batch_size"])
    seq = shape("dense").settle(target).spec.batch.seq_length
    weights_and_gradients = layers * 218e6 * 6 + 262e6 * 6
    kept_by_a_layer = 16 * 2 * samples * seq * 4096
    assert weights_and_gradients < total_gb * 1e9 < layers * kept_by_a_layer


def test_the_sampler_is_weighed_in_turns(machine, shape, tmp_path):
    case = next(weigh_sampler(machine(), shape("dense")))
    assert case.verdict == "pass"
    assert case.checks[-1].found.startswith("ratio 1.0000 (limit 1.02)")
    runs = sorted((tmp_path / "runs").iterdir())
    sampled = [bool('"nodes": []' not in (run / "record.json").read_text()) for run in runs]
    assert sampled == [True, False] * 3


def test_a_sampler_that_slows_the_run_down_fails(machine, shape):
    case = next(weigh_sampler(machine("slow_sampler"), shape("dense")))
    assert failed(case) == ["sampler_overhead"]


def test_a_ratio_needs_times_of_both_kinds():
    assert sampler_overhead([0.1], []).verdict == "fail"
    assert sampler_overhead([0.101, 0.5, 0.1], [0.1, 0.1, 0.1]).verdict == "pass"


def test_a_processor_has_no_sampler_to_weigh(machine, shape):
    case = next(weigh_sampler(machine(rehearse=True), shape("dense")))
    assert (case.verdict, case.checks[0].verdict) == ("skipped", "skipped")


def test_nothing_is_started_that_the_time_does_not_allow(machine, shape, tmp_path):
    runs = machine(seconds=5.0)
    assert set(verdicts(train_settings(runs, shape("dense"), FEW)).values()) == {"not_run"}
    assert set(verdicts(survive_oom(runs, shape("dense"))).values()) == {"not_run"}
    assert set(verdicts(weigh_sampler(runs, shape("dense"))).values()) == {"not_run"}
    assert not (tmp_path / "runs").exists()
