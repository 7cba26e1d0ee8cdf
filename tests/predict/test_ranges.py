"""The range of a predicted peak: its class, its two ends, the assumptions that widen it, and what is behind it."""

import pytest

from harness.experiment.experiment import OffloadSpec
from harness.predict.assumptions import Assumption, assumptions, band
from harness.predict.ranges import CLASSES, ENOUGH_ROWS, RatioError, Spread, class_of, ratio_error, spreads

EXPERTS = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 1024}
BIG, SMALL = 60 * 10**9, 10**9


def test_a_job_is_of_the_first_class_that_applies(make_spec):
    dense, experts = make_spec(), make_spec(model=make_spec().model.model_dump() | {"moe": EXPERTS})
    assert [class_of(spec, BIG).name for spec in (dense, experts)] == ["dense models", "models with experts"]
    assert class_of(experts, SMALL).name == "small models with experts"
    offloads = experts.model_copy(update={"offload": OffloadSpec(offload_modules=("moe_act",))})
    assert class_of(offloads, BIG).name == "offloading"
    assert class_of(make_spec(gpu="cpu"), SMALL).name == "CPU runs"


def test_the_generated_file_has_every_class_with_a_width_and_with_odds_in_order():
    assert spreads().keys() == {row.name for row in CLASSES}
    for name, found in spreads().items():
        assert found.lower <= -0.005 and found.higher >= 0.005, name
        assert (len(found.tenths), list(found.tenths)) == (9, sorted(found.tenths)), name
        assert found.tenths[-1] <= 1, name
        assert (found.num_of_ten(-10.0), found.num_of_ten(1.0)) == (0, 9)


def test_a_class_with_few_rows_is_wider_than_the_one_that_stands_in():
    few = [row for row in CLASSES if spreads()[row.name].num_rows < ENOUGH_ROWS and row.nearest]
    for row in few:
        own, near = spreads()[row.name], spreads()[row.nearest]
        assert own.higher - own.lower >= near.higher - near.lower - 1e-9, row.name


@pytest.mark.parametrize(("uneven", "expected"), [(1000, (900, 1200)), (1500, (900, 1425)), (1010, (900, 1000))])
def test_uneven_routing_moves_the_upper_end_only(uneven, expected):
    assert Spread(num_rows=20, lower=-0.1, higher=0.2, higher_uneven=-0.05).around(1000, uneven) == expected


def test_the_range_of_a_tiny_model_goes_as_far_as_bytes_say():
    dense = Spread(num_rows=20, lower=-0.005, higher=0.02, higher_uneven=0.02, least_bytes=15)
    assert [dense.around(peak, peak) for peak in (400, 100_000)] == [(385, 415), (99_500, 102_000)]
    assert spreads()["dense models"].least_bytes > 13.8e6  # by which a model of 0.43 GB on GB200 errs


@pytest.mark.parametrize(("part", "expected"), [(-0.1, 0), (0.0, 1), (0.45, 5), (0.79, 8), (0.8, 9), (1.0, 9)])
def test_odds_count_measured_peaks_below_a_part_of_the_way_to_the_upper_end(part, expected):
    tenths = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    assert Spread(20, -0.1, 0.2, 0.2, tenths).num_of_ten(part) == expected


def test_times_of_two_layouts_differ_only_beyond_the_measured_error_of_their_ratio():
    error = RatioError(share=0.2, num_rows=10)
    assert [error.hides(1.0, other) for other in (1.0, 1.2, 1.21)] == [True, True, False]
    assert not error.hides(0.0, 0.0)  # no seconds are predicted
    assert ratio_error().num_rows > 20
    assert 0.05 < ratio_error().share < 0.3


TE = "transformer_engine"


def texts(spec):
    return [row.text.split(":")[0] for row in assumptions(spec, TE)]


def test_a_range_stays_above_nothing_and_a_prediction_without_special_features_adds_nothing_to_it(make_spec):
    half = Assumption("half of it", lambda *_: True, lower=0.5, higher=0.5)
    assert (band((half,)), band((half, half))) == ((0.5, 0.5), (0.95, 1.0))
    spec = make_spec(gpu="h100", compute_dtype="bf16", kernels={"transformer_impl": TE})
    assert band(assumptions(spec, TE)) == (0, 0)


def test_deterministic_mode_may_change_the_attention_kernel_outside_of_hopper(make_spec):
    name, env = "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0", {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}
    made = {
        gpu: make_spec(gpu=gpu, compute_dtype="bf16", env=env, kernels={"transformer_impl": TE})
        for gpu in ("a100", "h100", "gb200")
    }
    assert {gpu: name in texts(spec) for gpu, spec in made.items()} == {"a100": True, "h100": False, "gb200": True}
    asked = {"transformer_impl": TE, "attention_backend": "flash"}
    assert name not in texts(make_spec(gpu="a100", compute_dtype="bf16", env=env, kernels=asked))
    assert band(assumptions(made["a100"], TE))[1] > 0


def test_sequences_longer_than_those_measured_on_hopper_are_an_assumption(make_spec):
    for gpu, length, is_one in (("h100", 8192, False), ("h100", 16384, True), ("b200", 16384, False)):
        batch = {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": length}
        found = texts(make_spec(gpu=gpu, compute_dtype="bf16", batch=batch))
        assert any(" 8192 tokens" in text for text in found) is is_one
