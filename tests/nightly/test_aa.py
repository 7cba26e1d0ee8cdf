"""The A/A of a night: when two labels of one setting count as different, and what that leaves to be judged."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from harness.errors import ExitCode
from harness.judge.derive import derive
from harness.judge.gate import Verdict
from harness.nightly.aa import AA_ALPHA, AaRequest, _time, judge_aa, with_aa
from harness.nightly.judge import judge_night
from harness.nightly.outcome import figures_outcome
from harness.nightly.values import CaseMaterial, CaseRun
from harness.records.goldens import GoldenSearch
from harness.records.metrics import BY_NAME
from harness.records.night import AaPlan, NightPlan, PlannedCase, aa_label

NUMBERS = range(3, 11)


@pytest.fixture(name="material")
def _material(make_spec, make_record, make_golden):
    """A case of three runs of ``seconds`` a step, its golden of a second, and four pairs of a second, A' ``slower``.

    ``ends``: of A/A runs by number. ``heavier``: the peak of A' over that of A. ``noise``: of one run, relative.
    """
    spec = make_spec(num_gpus=1, parallelism={}, measure={"max_steps": 20})
    base = make_record(spec)
    figures = derive(base)
    assert figures.peak_allocated_bytes is not None
    golden = make_golden(
        base,
        {"tflops_per_gpu": figures.tflops_per_gpu.median, "peak_allocated_bytes": figures.peak_allocated_bytes.value},
        num_runs=3,
    )

    def record(number, seconds, noise, heavier=1.0, status="ok", **more):
        record = make_record(spec, seconds * (1 + noise * ((number * 7) % 5 - 2)), status=status, failure="x", **more)
        ranks = [
            rank.model_copy(
                update={
                    "memory": rank.memory.model_copy(
                        update={
                            name: int(getattr(rank.memory, name) * heavier)
                            for name in ("max_allocated_bytes", "max_reserved_bytes", "max_device_used_bytes")
                        }
                    )
                }
            )
            for rank in record.ranks
        ]
        return record.model_copy(update={"ranks": tuple(ranks)})

    def build(seconds=1.0, slower=1.0, heavier=1.0, noise=0.001, ends=None, numbers=NUMBERS, **case):
        purposes = ("repeat", "repeat", "confirm")
        runs = [
            CaseRun(i, what, "", Path("runs"), record(i, seconds, 0.001, run_id=f"run{i}"))
            for i, what in enumerate(purposes)
        ]
        labelled = [(number, aa_label(number - NUMBERS.start)) for number in numbers]

        def seconds_and_peak(label):
            return (slower, noise, heavier) if label == "A'" else (1.0, noise, 1.0)

        pairs = [
            CaseRun(n, "aa", label, Path("runs"), record(n, *seconds_and_peak(label), **(ends or {}).get(n, {})))
            for n, label in labelled
        ]  # fmt: skip
        planned = PlannedCase(name="dense", spec=spec, repeats=3, **case)
        return CaseMaterial(planned, runs, GoldenSearch(golden, Path("golden.json")), aa_runs=tuple(pairs))

    return build


def judged(case):
    plan = NightPlan(night_id="n", suite="s", title="S", cases=(case.planned,), confirm=2, retries=1, command=("x",),
                     started_at="2026-02-01T03:00:00Z", mbr_perf="0", aa=AaPlan(case="dense", num_pairs=4))  # fmt: skip
    return judge_night(Path("night"), plan, [case], today=date(2026, 2, 1))


def verdict_of(night, metric):
    return next(finding.verdict for finding in night.cases[0].findings if finding.metric == metric)


def test_labels_take_turns_so_that_a_drift_falls_on_both_alike():
    places = {label: [i for i in range(8) if aa_label(i) == label] for label in ("A", "A'")}
    assert sum(places["A"]) == sum(places["A'"]) == 14


def test_equal_labels_leave_everything_to_be_judged(material):
    night = judged(material(seconds=1.2))
    assert night.aa.holds
    assert (night.outcome, night.exit_code) == ("regression", ExitCode.REGRESSION)


@pytest.mark.parametrize("seconds", [1.0, 1.2, 0.8])
def test_unequal_times_leave_no_verdict_on_a_time_whatever_it_was(material, seconds):
    night = judged(material(seconds=seconds, slower=1.05))
    assert (night.outcome, night.exit_code) == ("inconclusive", ExitCode.INCONCLUSIVE)
    assert verdict_of(night, "tflops_per_gpu") is Verdict.INCONCLUSIVE
    assert verdict_of(night, "peak_allocated_bytes") is Verdict.PASS
    assert "A/A differs: TFLOP/s/GPU by -4.8 %" in night.cases[0].reason


def test_a_small_difference_is_none_however_sure_it_is(material):
    case = material(slower=1.015, noise=0.0001)
    found = judge_aa(case.planned, case.aa_runs, NUMBERS)
    assert found.holds
    assert found.findings[0].p_value < AA_ALPHA


def test_a_large_difference_that_noise_may_make_is_none_where_the_threshold_would_have_shown(material):
    case = material(slower=1.05, noise=0.03, thresholds={"tflops_per_gpu": 0.15})
    found = judge_aa(case.planned, case.aa_runs, NUMBERS)
    assert found.holds
    assert abs(found.findings[0].change) > 0.02


def test_an_aa_in_whose_noise_the_threshold_would_not_show_is_inconclusive_and_no_time_is_judged(material):
    night = judged(material(noise=0.2))
    [finding] = (finding for finding in night.aa.findings if finding.p_value is not None)
    assert finding.p_value > AA_ALPHA and finding.visible > 0.5
    assert (night.outcome, night.exit_code) == ("inconclusive", ExitCode.INCONCLUSIVE)
    assert verdict_of(night, "tflops_per_gpu") is Verdict.INCONCLUSIVE
    assert verdict_of(night, "peak_allocated_bytes") is Verdict.PASS
    assert "A/A is too noisy: it can only show a change of TFLOP/s/GPU of " in night.cases[0].reason
    assert "or more, and the threshold is 5 %" in night.cases[0].reason


def test_unequal_memory_leaves_no_verdict_on_memory_and_one_on_time(material):
    night = judged(material(heavier=1.1))
    assert (night.exit_code, night.aa.doubts.keys()) == (ExitCode.INCONCLUSIVE, {"memory"})
    assert verdict_of(night, "peak_allocated_bytes") is Verdict.INCONCLUSIVE
    assert verdict_of(night, "tflops_per_gpu") is Verdict.PASS


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ends": {6: {"status": "failed"}}}, "A/A failed: run 6: x"),
        ({"ends": {6: {"status": "oom"}}}, "A/A failed: run 6: out of memory: x"),
        ({"ends": {6: {"status": "interrupted"}}}, "A/A is incomplete: 7 of 8 runs are done"),
        ({"numbers": range(3, 9)}, "A/A is incomplete: 6 of 8 runs are done"),
        ({"numbers": range(0)}, "A/A is incomplete: 0 of 8 runs are done"),
        ({"ends": {6: {"suspect": ("throttled",)}}}, "A/A is not usable: run 6 is suspect: throttled"),
    ],
)
def test_an_aa_that_is_incomplete_or_not_usable_is_no_pass(material, changes, why):
    night = judged(material(**changes))
    assert why in night.aa.doubts["time"]
    assert (night.outcome, night.exit_code) == ("inconclusive", ExitCode.INCONCLUSIVE)
    assert verdict_of(night, "peak_allocated_bytes") is Verdict.PASS


def test_a_case_that_ran_out_of_memory_stays_the_answer(material):
    case = material(slower=1.05)
    ended = [replace(run, record=run.record.model_copy(update={"status": "oom"})) for run in case.runs]
    night = judged(replace(case, runs=ended))
    assert (night.outcome, night.exit_code) == ("oom", ExitCode.OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("slower", "outcome", "exit_code"), [(1.0, "pass", ExitCode.OK), (1.2, "inconclusive", ExitCode.INCONCLUSIVE)]
)
def test_an_aa_that_does_not_hold_leaves_even_a_night_without_goldens_open(material, slower, outcome, exit_code):
    night = judged(
        replace(material(slower=slower, is_golden_required=False), golden=GoldenSearch(None, None, "no golden"))
    )
    assert (night.cases[0].outcome, night.outcome, night.exit_code) == ("pass", outcome, exit_code)


def test_the_case_of_the_fewest_gpu_seconds_is_the_aa(make_spec):
    batches = (("dear", 64), ("cheap", 32), ("dearer", 128))
    specs = {
        name: make_spec(batch={"micro_batch_size": 1, "global_batch_size": size, "seq_length": 4096})
        for name, size in batches
    }
    plan = NightPlan(night_id="", suite="s", title="S", confirm=2, retries=1, command=("x",), mbr_perf="0",
                     started_at="2026-02-01T03:00:00Z",
                     cases=tuple(PlannedCase(name=name, spec=spec, repeats=1) for name, spec in specs.items()))  # fmt: skip
    assert with_aa(plan, AaRequest()).aa.case == "cheap"


def test_without_a_gated_metric_a_case_is_inconclusive():
    assert figures_outcome(())[0] == "inconclusive"


@pytest.mark.parametrize("sides", [([1.0, None, 1.0], [1.0, 1.0, 1.1]), ([1.0, 1.0, 1.1], [1.0, None, 1.0])])
def test_a_label_with_a_run_that_measured_no_time_does_not_hold(sides):
    found = _time(BY_NAME["tflops_per_gpu"], *sides, threshold=0.05)
    assert (found.holds, found.change) == (False, None)
