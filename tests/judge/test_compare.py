"""From runs and a reference to metrics and a verdict."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.history.record import history_record
from harness.judge.compare import WindowOptions, compare_runs, compare_stored, find_reference
from harness.judge.derive import derive
from harness.judge.gate import Verdict, comparison_outcome, run_outcome
from harness.judge.promotion import PromotionOptions, promote
from harness.records.gating import GateOptions
from harness.records.goldens import GoldenSearch, find_golden, golden_text, write_golden
from harness.records.rank import ClockSamples, Device
from harness.records.references import MARKS
from harness.records.run import DeviceSample, NodeSample
from harness.records.store import write_record


def search(golden):
    return GoldenSearch(golden, Path("results/golden/h100/x.json"))


def test_cpu_repeats_narrow_the_threshold_only_if_the_golden_has_repeats_too(make_spec, make_record, make_golden):
    runs = [make_record(make_spec(gpu="cpu"), run_id=f"r{i}") for i in range(3)]
    for num_runs, threshold in ((1, 0.15), (3, 0.10)):
        golden = make_golden(runs[0], {"tflops_per_gpu": 1.0}, num_runs=num_runs)
        _, comparison = compare_runs(runs, search(golden), GateOptions())
        assert (comparison.golden_path, comparison.findings[0].threshold) == ("results/golden/h100/x.json", threshold)


def test_repeats_of_other_settings_are_refused(make_spec, make_record, make_golden):
    runs = [make_record(), make_record(make_spec(recompute="mlp"))]
    with pytest.raises(BadRequestError, match="same settings"):
        compare_runs(runs, search(make_golden(runs[0], {"tflops_per_gpu": 1.0})), GateOptions())


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"status": "failed", "failure": "rank 3 died"}, "failed: rank 3 died"),
        ({"suspect": ("GPU 0 was throttled",)}, "suspect: GPU 0 was throttled"),
    ],
)
def test_a_failed_or_suspect_run_is_inconclusive(make_record, make_golden, changes, doubt):
    record = make_record(seconds=2.5, **changes)
    _, comparison = compare_runs([record], search(make_golden(record, {"tflops_per_gpu": 1.0})), GateOptions())
    assert (comparison.outcome, doubt in comparison.findings[0].reason) == (Verdict.INCONCLUSIVE, True)


def test_the_window_may_be_chosen_again(make_record):
    record = make_record(seconds=[2.0] * 25 + [4.0] * 25)
    early = WindowOptions(eval_time_start_step=0, eval_time_end_step=10)
    nothing = GoldenSearch(None, None, "none")
    assert compare_runs([record], nothing, GateOptions(), early)[0].step_time_s.median == 2.0
    assert compare_runs([record], nothing, GateOptions())[0].step_time_s.median == 4.0


def test_a_window_without_a_step_names_the_options_that_make_it(make_spec):
    with pytest.raises(BadRequestError, match="--eval_time_start_step, --eval_time_end_step: "):
        WindowOptions(eval_time_start_step=9, eval_time_end_step=9).over(make_spec().measure)


def test_a_window_that_cannot_be_is_an_error(make_spec):
    with pytest.raises(BadRequestError, match="--skip_first_percent_time"):
        WindowOptions(skip_first_percent_time=1.5).over(make_spec().measure)


@pytest.mark.parametrize("value", [-0.01, 1.0, 5.0, float("nan"), float("inf")])
def test_a_threshold_that_is_no_fraction_is_an_error_even_without_a_golden(value):
    with pytest.raises(BadRequestError, match=r"--timing_threshold .* not a fraction"):
        GateOptions(timing_threshold=value)
    with pytest.raises(BadRequestError, match=r"--memory_threshold .* not a fraction"):
        GateOptions(memory_threshold=value)


def test_the_stored_golden_of_the_settings_is_found(tmp_path, make_record, make_golden):
    record = make_record()
    path = write_golden(tmp_path, record.spec, make_golden(record, {"tflops_per_gpu": 700.0}))
    found = find_reference(None, record, GateOptions(golden_values_path=tmp_path), None)
    assert (found.path, found.golden.metrics["tflops_per_gpu"].value) == (path, 700.0)


def test_a_named_golden_file_is_taken_whatever_it_is_for(tmp_path, make_spec, make_record, make_golden):
    path = tmp_path / "mine.json"
    path.write_text(golden_text(make_golden(make_record(), {"tflops_per_gpu": 700.0})))
    other = make_record(make_spec(recompute="mlp"))
    assert find_reference(str(path), other, GateOptions(), None).golden.recompute == "core_attn"


def test_another_run_is_a_golden_of_one(tmp_path, make_record):
    reference, record = make_record(seconds=2.5), make_record(seconds=2.6)
    write_record(tmp_path, reference)
    found = find_reference(str(tmp_path), record, GateOptions(), None)
    _, comparison = compare_runs([record], found, GateOptions())
    assert comparison.outcome is Verdict.PASS
    assert comparison.findings[0].change == pytest.approx(2.5 / 2.6 - 1, rel=1e-4)


def test_a_failed_run_is_no_reference(tmp_path, make_record):
    write_record(tmp_path, make_record(status="failed", failure="rank 0 died"))
    with pytest.raises(BadRequestError, match="ended as failed: rank 0 died"):
        find_reference(str(tmp_path), make_record(), GateOptions(), None)


def test_a_named_folder_must_hold_the_golden_and_be_no_sweep(tmp_path, make_record, make_spec):
    for name in ("run", "named"):
        (tmp_path / name).mkdir()
    write_record(tmp_path / "run", make_record(make_spec(recompute="mlp")))

    def ends(golden):
        return compare_stored([str(tmp_path / "run")], golden, GateOptions(), WindowOptions(), tmp_path)[-1]

    assert (ends(None), ends(str(tmp_path / "named"))) == (("pass", 0), ("inconclusive", 6))
    (tmp_path / "named" / MARKS["sweep"]).touch()
    with pytest.raises(BadRequestError, match="is a sweep, not a run"):
        ends(str(tmp_path / "named"))


@pytest.mark.parametrize(
    ("options", "outcome", "code"),
    [
        (GateOptions(), "pass", 0),
        (GateOptions(require_golden=True), "inconclusive", 6),
        (GateOptions(golden_values_path=Path("somewhere")), "inconclusive", 6),
    ],
)
def test_naming_a_golden_requires_one(make_record, options, outcome, code):
    _, comparison = compare_runs([make_record()], GoldenSearch(None, None, "none"), options)
    assert comparison_outcome(comparison) == (outcome, code)


@pytest.mark.parametrize(
    ("golden", "strict", "outcome", "code"),
    [
        (709.645, False, "pass", 0),
        (800.0, False, "regression", 5),
        (600.0, False, "improvement", 0),
        (600.0, True, "improvement", 7),
    ],
)
def test_a_finished_run_ends_as_the_gate_says(make_record, make_golden, golden, strict, outcome, code):
    record = make_record(seconds=2.5)
    _, comparison = compare_runs([record], search(make_golden(record, {"tflops_per_gpu": golden})), GateOptions())
    assert run_outcome("ok", comparison, fail_on_improvement=strict) == (outcome, code)
    unfinished = comparison_outcome(replace(comparison, provisional=("the log goes on",)))
    assert unfinished[0] == (outcome if outcome == "regression" else "inconclusive")


@pytest.mark.parametrize(
    ("status", "signal", "outcome", "code"),
    [
        ("oom", None, "oom", 4),
        ("failed", None, "failed", 3),
        ("interrupted", 15, "failed", 143),
    ],
)
def test_a_run_that_ended_badly_ends_so_whatever_it_measured(make_record, status, signal, outcome, code):
    _, comparison = compare_runs([make_record(status=status)], GoldenSearch(None, None, "none"), GateOptions())
    assert run_outcome(status, comparison, signal=signal) == (outcome, code)


BY_RECIPE = {"optimizer.lr": "recipes/llama/llama3_70b.yaml:40"}


@pytest.mark.parametrize("required", [False, True])
def test_a_run_of_a_changed_recipe_point_is_inconclusive_and_lists_both_values(
    make_spec, make_record, make_golden, tmp_path, required
):
    before = make_record(seconds=2.5)
    write_golden(tmp_path, before.spec, make_golden(before, {"tflops_per_gpu": 709.93}))
    record = make_record(make_spec(optimizer={"lr": 2e-4}), seconds=2.5, sources=BY_RECIPE)
    found = find_golden(record.spec, tmp_path, record.sources)
    _, comparison = compare_runs([record], found, GateOptions(require_golden=required))
    assert comparison_outcome(comparison) == ("inconclusive", 6)
    assert [d.text for d in comparison.likeness.differences] == ["optimizer.lr: golden 0.0001, here 0.0002"]
    assert comparison.note
    by_option = find_golden(record.spec, tmp_path, {"optimizer.lr": "--set optimizer.lr"})
    _, nothing = compare_runs([record], by_option, GateOptions())
    assert comparison_outcome(nothing) == ("pass", 0)


@pytest.fixture(name="at_clock")
def _at_clock(make_spec, make_rank, make_record):
    """A run on one GPU at the given median SM clock over its window; None: its clocks were not read."""

    def build(mhz, seconds=2.5):
        spec = make_spec(num_gpus=1, parallelism={}, measure={"max_steps": 20})
        device = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", uuid="GPU-a")
        own = make_rank(spec, 0, seconds)
        steps = tuple(step.model_copy(update={"ended_s": seconds * (step.step + 1)}) for step in own.steps)
        looks = [(n / 2, mhz, 0x04) for n in range(120)]
        times, clocks, reasons = zip(*looks, strict=True)
        samples = ClockSamples(times_s=times, sm_clocks_mhz=clocks, reasons=reasons)
        sampled = DeviceSample(uuid="GPU-a", name="H100", index=0, num_samples=120, clocks=samples)
        nodes = (NodeSample(hostname="n", devices=(sampled,)),) if mhz else ()
        return make_record(spec, ranks=(make_rank(spec, 0, device=device, steps=steps),), nodes=nodes)

    return build


def promoted(record):
    return promote([record], PromotionOptions("first", "someone", datetime(2026, 1, 2, tzinfo=UTC)))


def judged(record, golden, **options):
    _, comparison = compare_runs([record], search(golden), GateOptions(**options))
    return comparison, {f.metric: str(f.verdict) for f in comparison.findings if f.verdict != Verdict.NOT_GATED}


@pytest.mark.parametrize(
    ("mhz", "time"), [(1442, "pass"), (1358, "pass"), (1443, "inconclusive"), (1357, "inconclusive")]
)
def test_a_clock_more_than_3_percent_off_the_goldens_makes_time_inconclusive_and_memory_is_judged(at_clock, mhz, time):
    comparison, verdicts = judged(at_clock(mhz), promoted(at_clock(1400)))
    assert (verdicts["tflops_per_gpu"], verdicts["peak_allocated_bytes"], verdicts["peak_reserved_bytes"]) == (
        time, "pass", "pass",
    )  # fmt: skip
    if time == "inconclusive":
        assert comparison.findings[0].reason == f"sm_clock_mhz: golden 1400 MHz, here {mhz} MHz"
        _, accepted = judged(at_clock(mhz), promoted(at_clock(1400)), accept_differences=("sm_clock_mhz",))
        assert set(accepted.values()) == {"pass"}


def test_history_keeps_the_clocks_of_a_run(at_clock):
    record = at_clock(1400)
    kept = history_record(record, derive(record))
    assert (kept.sm_clock_mhz, kept.power_cap_share) == (1400.0, 1.0)
