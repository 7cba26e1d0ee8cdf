"""Why a run differs from its golden: every recorded difference, and the metrics that it can have changed."""

from datetime import UTC, datetime
from typing import get_args

import pytest

from harness.experiment.experiment import PeftSpec
from harness.explain.causes import EFFECTS, NOTHING, advice, effect_of, explain, moved
from harness.explain.facts import golden_side, run_side
from harness.explain.values import Cause, Change
from harness.judge.promotion import PromotionOptions, promote
from harness.records.golden import Difference, GoldenMetric, GoldenRecord, Group, MeasuredOn
from harness.records.rank import ClockSamples, Device
from harness.records.run import DeviceSample, NodeSample

PRODUCT = "NVIDIA H100 80GB HBM3"


@pytest.fixture(name="sampled")
def _sampled(make_spec, make_rank, make_record):
    """A run whose GPUs were sampled; GPU 3 may be slower, throttled, or shared."""

    def build(seconds=2.5, clock=1980.0, throttled=0, foreign=(), **changes):
        spec = changes.pop("spec", None) or make_spec()
        devices = tuple(
            DeviceSample(uuid=f"GPU-{rank}", name=PRODUCT, index=rank, num_samples=9,
                         clocks=ClockSamples(times_s=(0.0,), sm_clocks_mhz=(int(clock if rank == 3 else 1980),),
                                             reasons=(throttled if rank == 3 else 0,)),
                         foreign_processes=foreign if rank == 3 else ())
            for rank in range(spec.num_gpus)
        )  # fmt: skip
        ranks = tuple(
            make_rank(spec, rank, seconds, device=Device(kind="cuda", name=PRODUCT, uuid=f"GPU-{rank}"))
            for rank in range(spec.num_gpus)
        )
        nodes = (NodeSample(hostname="node0", driver_version="550.54.15", devices=devices),)
        return make_record(spec, ranks=ranks, nodes=nodes, **changes)

    return build


def published(**changes):
    fields = {
        "kind": "external", "recipe": "llama3_70b", "task": "sft", "gpu": "h100", "compute_dtype": "fp8_cs", "num_gpus": 32,
        "recompute": "core_attn", "metrics": {"tflops_per_gpu": GoldenMetric(value=709.93)},
        "measured_on": MeasuredOn(gpu="h100"), "num_runs": 1, "promoted_at": "2026-01-01T00:00:00Z",
        "promoted_by": "someone", "reason": "published",
        "spec": {"parallelism": {"tensor_model_parallel_size": 4}, "batch": {"seq_length": 4096}},
    }  # fmt: skip
    return GoldenRecord(**fields | changes)


def runs(ours, theirs):
    return explain(run_side(ours), run_side(theirs, name="other"))


def cause(found, name):
    return next(cause for cause in found.causes if cause.name == name)


def test_equal_runs_differ_in_nothing_whatever_their_recipes_are_called(make_record, make_spec):
    found = runs(make_record(make_spec(recipe="new"), seconds=2.5), make_record(seconds=2.5))
    assert (found.causes, found.advice) == ((), ())


def test_a_throttled_gpu_may_explain_a_longer_step(sampled):
    slow = sampled(seconds=3.0, clock=1500.0, throttled=0x40)
    golden = promote([sampled()], PromotionOptions("first", "someone", datetime(2026, 3, 4, tzinfo=UTC)))
    for theirs in (run_side(sampled(), name="other"), golden_side("golden", golden)):
        found = explain(run_side(slow), theirs)
        assert cause(found, "throttling or other clocks").explains == ("step_time_s",)
        rows = {row.name: (row.run, row.reference) for row in found.causes[0].differences}
        assert rows["sm_clock_min_mhz"] == ("1500 MHz", "1980 MHz")
        assert rows["throttling"][1] == "none seen"


@pytest.mark.parametrize(("clock", "num_causes"), [(1970.0, 0), (1900.0, 1)])
def test_clocks_within_one_percent_are_equal(sampled, clock, num_causes):
    assert len(runs(sampled(seconds=3.0, clock=clock), sampled()).causes) == num_causes


def test_a_cause_that_moves_no_changed_metric_is_listed_last(sampled, make_golden):
    other_formula = make_golden(sampled(), {"step_time_s": 2.5}, formula_version="model-flops-0")
    found = explain(
        run_side(sampled(seconds=3.0, provenance={"driver_version": "570.1"})), golden_side("golden", other_formula)
    )
    assert found.causes[-1].name == "another formula" and not found.causes[-1].can_explain
    assert found.causes[0].can_explain
    assert [cause.rank for cause in found.causes] == list(range(1, len(found.causes) + 1))


def test_the_likeliest_effect_is_first(sampled):
    ours = sampled(
        seconds=3.0, clock=1900.0, foreign=("pid 1 (python)",),
        provenance={"environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "driver_version": "570.1",
                    "device_name": "NVIDIA H100 PCIe", "hostname": "node0",
                    "versions": {"torch": "2.10.0", "megatron-core": "0.17.0", "transformer-engine": "2.12"}},
    )  # fmt: skip
    theirs = sampled(provenance={"environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}})
    assert [cause.name for cause in runs(ours, theirs).causes] == [
        "another GPU or CPU", "throttling or other clocks", "other processes on the GPU",
        "another number of hardware queues", "another transformer-engine", "other software", "another driver",
    ]  # fmt: skip


@pytest.mark.parametrize(("seconds", "is_noise"), [(2.51, True), (3.0, False)])
def test_a_change_is_compared_with_the_known_spread(make_record, make_golden, seconds, is_noise):
    record = make_record(seconds=seconds)
    metrics = {"step_time_s": GoldenMetric(value=2.5, relative_spread=0.006)}
    golden = make_golden(record, {}).model_copy(update={"metrics": metrics, "num_runs": 3})
    found = explain(run_side(record), golden_side("golden", golden))
    (change,) = (change for change in found.metrics if change.metric == "step_time_s")
    assert (change.is_noise, change.noise) == (is_noise, pytest.approx(2 * 0.006 * (1 + 1 / 3) ** 0.5))
    assert found.causes == ()


def test_a_fact_of_one_side_only_is_listed_but_is_no_difference(make_record, make_golden):
    record = make_record(provenance={"environment": {"NCCL_NVLS_ENABLE": "0"}})
    found = explain(run_side(record), golden_side("golden", make_golden(record, {"step_time_s": 1.0})))
    assert found.num_compared > 50 and found.num_one_sided > 0
    assert found.causes == ()


def test_a_published_throughput_is_turned_into_a_step_time(make_record, make_spec):
    side = golden_side("published", published(), make_spec())
    assert side.metrics["step_time_s"] == pytest.approx(2.499, abs=1e-3)
    assert side.derived == ("step_time_s",)
    assert golden_side("published", published(), make_spec(recipe="other")).derived == ()
    other_formula = published(formula_version="model-flops-0")
    assert golden_side("published", other_formula, make_spec()).derived == ()


def test_another_formula_explains_throughput_and_no_time(make_record, make_golden):
    record = make_record(seconds=2.5)
    golden = make_golden(record, {"step_time_s": 2.5, "tflops_per_gpu": 650.0}, formula_version="model-flops-0")
    found = explain(run_side(record), golden_side("golden", golden))
    assert cause(found, "another formula").explains == ("tflops_per_gpu",)


def test_a_requested_variable_is_listed_once(make_record, make_spec, make_golden):
    asked = make_record(make_spec(env={"NCCL_ALGO": "Ring"}), provenance={"environment": {"NCCL_ALGO": "Ring"}})
    bare = make_record(provenance={"environment": {"A": "1"}})
    golden = golden_side("golden", make_golden(bare, {"step_time_s": 1.0}))  # without variables
    for theirs in (run_side(bare, name="other"), golden):
        (row,) = cause(explain(run_side(asked), theirs), "other communication settings").differences
        assert (row.group, row.name, row.reference) == ("environment", "NCCL_ALGO", "none")


def test_a_golden_from_before_a_field_has_its_default(make_record, make_spec, make_golden):
    golden = make_golden(make_record(), {"step_time_s": 1.0})
    del golden.spec["train"]
    found = explain(run_side(make_record(make_spec(train={"manual_gc": True}))), golden_side("golden", golden))
    (row,) = (d for each in found.causes for d in each.differences if d.group == "settings")
    assert (row.name, row.run, row.reference) == ("train.manual_gc", "True", "False")


def test_a_section_that_one_side_has_is_listed_by_its_fields(make_record, make_spec):
    spec = make_spec().model_copy(update={"peft": PeftSpec()})
    found = runs(make_record(spec), make_record())
    rows = {d.name: (d.run, d.reference) for each in found.causes for d in each.differences if d.group == "settings"}
    assert rows.keys() == {"peft.alpha", "peft.dim", "peft.target_modules"}
    assert rows["peft.dim"] == ("32", "none")


def test_an_inert_module_is_listed_only_if_the_reference_is_a_published_figure(make_record, make_spec, make_golden):
    record = make_record(make_spec(recompute="layernorm"))
    assert record.effective.inert_modules
    found = explain(run_side(record), golden_side("published", published(recompute="layernorm"), record.spec))
    assert cause(found, "another recompute setting").differences[0].name == "inert.layernorm"
    assert explain(run_side(record), golden_side("golden", make_golden(record, {"step_time_s": 1.0}))).causes == ()


def test_every_group_of_facts_has_a_row_for_whatever_it_holds():
    assert {effect_of(Difference("anything", "b", "a", group=group)).moves != () for group in get_args(Group)} == {True}
    assert len({effect.name for effect in EFFECTS}) == len(EFFECTS)


def test_if_only_throughput_is_known_on_both_sides_causes_are_judged_by_it(make_record, make_spec):
    theirs = golden_side("published", published(formula_version="another formula"), make_spec())
    found = explain(run_side(make_record()), theirs)
    assert "step_time_s" not in theirs.metrics
    assert any("tflops_per_gpu" in cause.explains for cause in found.causes)


def changes_of(found):
    return {change.metric: change for change in found.metrics}


def test_a_metric_is_listed_if_either_side_has_it(make_record, make_spec, make_golden):
    record = make_record(make_spec(gpu="cpu"))
    golden = golden_side("golden", make_golden(record, {"step_time_s": 2.5, "peak_device_bytes": 60e9}))
    found = changes_of(explain(run_side(record), golden))
    assert (found["peak_allocated_bytes"].run, found["peak_allocated_bytes"].reference) == (58_000_000_000, None)
    assert (found["peak_device_bytes"].run, found["peak_device_bytes"].reference) == (None, 60e9)
    assert (found["step_time_s"].run, found["step_time_s"].reference) == (1.0, 2.5)
    assert "peak_device_bytes" not in changes_of(runs(record, record))


def test_the_noise_of_single_cpu_runs_is_the_measured_difference_of_equal_runs(make_record, make_spec):
    spec = make_spec(gpu="cpu")
    found = changes_of(runs(make_record(spec, seconds=1.1), make_record(spec, seconds=1.0)))
    assert found["step_time_s"].noise == spec.gpu_type.timing_threshold
    assert found["peak_allocated_bytes"].noise == spec.gpu_type.memory_threshold != spec.gpu_type.timing_threshold


def test_the_noise_of_single_runs_on_a_gpu_or_without_settings_is_unknown(make_record):
    here, there = run_side(make_record(seconds=2.75)), run_side(make_record(seconds=2.5))
    for ours in (here, here.model_copy(update={"spec": None})):
        change = changes_of(explain(ours, there))["step_time_s"]
        assert change.change == pytest.approx(0.1)
        assert change.noise is None


@pytest.mark.parametrize(
    ("change", "is_moved"), [(NOTHING, True), (-NOTHING, True), (NOTHING * 0.99, False), (None, False)]
)
def test_two_thousandths_are_a_change(change, is_moved):
    assert moved(Change("step_time_s", 1.0, 1.0, change)) is is_moved


def made(*explains):
    differences = (Difference("cudnn", "b", "a", group="software"),)
    return Cause(name="cuDNN", differences=differences, explains=explains, size="")


SLOWER = (Change("step_time_s", 1.1, 1.0, 0.1, noise=0.01),)


@pytest.mark.parametrize(("explains", "word"), [(("step_time_s",), "cuDNN"), ((), "other nodes")])
def test_the_advice_is_on_causes_that_can_explain_the_change(explains, word):
    (advised,) = advice(SLOWER, (made(*explains),))
    assert word in advised


def test_without_a_change_there_is_no_advice():
    assert advice((Change("step_time_s", 1.0, 1.0, 0.0),), (made("step_time_s"),)) == ()


def test_a_zero_is_no_value(make_record, make_rank, make_spec):
    spec = make_spec(gpu="cpu")
    ranks = tuple(make_rank(spec, rank, counted_flops_per_step=0) for rank in range(spec.num_gpus))
    assert "counted_flops_per_step" in run_side(make_record(spec)).metrics
    assert "counted_flops_per_step" not in run_side(make_record(spec, ranks=ranks)).metrics
