"""A golden of an older formula: worked out again where it says enough, else it stays what it is and blocks."""

from pathlib import Path

import pytest

from harness.judge.compare import compare_runs, in_todays_formula
from harness.judge.derive import derive
from harness.records.golden import GoldenMetric
from harness.records.goldens import GateOptions, GoldenSearch


@pytest.fixture(name="run")
def _run(make_spec, make_record):
    return make_record(make_spec(num_gpus=1, parallelism={}), 2.0)


@pytest.fixture(name="old")
def _old(run, make_golden):
    """A golden whose formula said 1 TFLOP/s at the step time of the run."""
    return make_golden(run, {"tflops_per_gpu": 1.0, "step_time_s": 2.0}, formula_version="model-flops-0")


def compared(run, golden):
    return compare_runs([run], GoldenSearch(golden, Path("golden.json")), GateOptions())[1]


def test_a_comparison_trusts_the_step_time_and_not_the_old_figure(run, old):
    comparison = compared(run, old)
    throughput = comparison.findings[0]
    assert (throughput.metric, throughput.verdict) == ("tflops_per_gpu", "pass")
    assert throughput.golden == pytest.approx(derive(run).tflops_per_gpu.median)
    assert comparison.likeness.caveats == (
        "TFLOP/s by model-flops-1 from the golden's step time; it was stored by model-flops-0",
    )


def test_the_spread_over_the_goldens_runs_is_kept(run, old):
    metrics = old.metrics | {"tflops_per_gpu": GoldenMetric(value=1.0, relative_spread=0.01)}
    changed = in_todays_formula(GoldenSearch(old.model_copy(update={"metrics": metrics}), None), run.spec).golden
    assert changed.metrics["tflops_per_gpu"].relative_spread == 0.01


@pytest.mark.parametrize(
    "change", [{"metrics": {"tflops_per_gpu": GoldenMetric(value=1.0)}}, {"fingerprint": "0" * 16}]
)
def test_without_a_step_time_or_for_other_settings_the_old_formula_blocks(run, old, change):
    golden = old.model_copy(update=change)
    assert in_todays_formula(GoldenSearch(golden, None), run.spec).golden == golden
    comparison = compared(run, golden)
    assert comparison.outcome == "inconclusive"
    assert "formula_version: golden model-flops-0, here model-flops-1" in comparison.findings[0].reason


def test_a_golden_of_todays_formula_and_none_at_all_stay_as_they_are(run, old):
    today = GoldenSearch(old.model_copy(update={"formula_version": "model-flops-1"}), None)
    none = GoldenSearch(None, None, "no golden")
    assert (in_todays_formula(today, run.spec), in_todays_formula(none, run.spec)) == (today, none)
