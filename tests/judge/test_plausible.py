"""Figures that cannot be true are named and give no verdict."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.history.record import history_record
from harness.judge.compare import compare_runs
from harness.judge.derive import derive
from harness.judge.gate import Verdict
from harness.judge.plausible import SHORTEST_STEP_S, doubts_of, impossible, impossible_golden, impossible_series
from harness.judge.promotion import PromotionOptions, promote
from harness.records.gating import GateOptions
from harness.records.golden import GoldenRecord, MeasuredOn, golden_text
from harness.records.goldens import GoldenSearch, read_golden
from harness.records.rank import Device, MemoryRecord
from harness.units import GIB
from tests.commands import refused
from tests.conftest import build_steps

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def changed(record, at, /, **changes):
    """The record with one rank's fields replaced."""
    ranks = tuple(own.model_copy(update=changes) if own.rank == at else own for own in record.ranks)
    return record.model_copy(update={"ranks": ranks})


def memory(**peaks):
    return {"memory": MemoryRecord(meter="cuda", **peaks)}


DAMAGE = {
    "world size": ({"world_size": 8}, "world_size is 8"),
    "unfinished": ({"finished": False}, "did not finish"),
    "too short": ({"steps": build_steps([9e-7])}, "a step of less than 1 us"),
    "zero": (memory(max_allocated_bytes=0), "peak allocated of 0 B "),
    "negative": (memory(max_reserved_bytes=-1), "peak reserved of -1 B "),
    "empty device": (memory(max_device_used_bytes=0), "peak device used of 0 B "),
    "beyond the device": (memory(max_allocated_bytes=2 * GIB + 1, device_total_bytes=2 * GIB), "1 B above the 2.00 GiB"),
    "beyond every card": (memory(max_reserved_bytes=500 * GIB), "above the 120.00 GiB"),
    "another GPU": ({"device": Device(kind="cuda", name="NVIDIA A100-SXM4-80GB")}, "ran on NVIDIA A100-SXM4-80GB"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_an_impossible_figure_is_named_and_is_neither_an_improvement_nor_a_golden(make_record, make_golden, case):
    changes, part = DAMAGE[case]
    whole = make_record(seconds=2.5)
    assert impossible(whole, derive(whole)) == ()
    record = changed(whole, 5, **changes)
    [sentence] = [what for what in impossible(record, derive(record)) if what.startswith("rank 5: ")]
    assert part in sentence
    golden = make_golden(whole, {"tflops_per_gpu": 1.0, "peak_allocated_bytes": 10 * GIB})
    search = GoldenSearch(golden, Path("golden.json"))
    assert compare_runs([record], search, GateOptions())[1].outcome is Verdict.INCONCLUSIVE
    assert compare_runs([record], GoldenSearch(None, None, "none"), GateOptions())[1].outcome is Verdict.INCONCLUSIVE
    refused(lambda: promote([record], PromotionOptions("r", "a", NOW)), sentence, num=None)
    assert sentence in history_record(record, derive(record)).suspect


def test_ranks_with_the_same_problem_share_a_sentence(make_record):
    record = make_record(seconds=2.5)
    for rank in (4, 5, 6, 31):
        record = changed(record, rank, finished=False)
    [found] = impossible(record, derive(record))
    assert found.startswith("ranks 4-6, 31: ")


def test_a_run_that_failed_has_partial_figures_and_no_further_doubt(make_record):
    record = changed(make_record(seconds=2.5, status="failed", failure="x"), 1, finished=False)
    assert doubts_of(record, derive(record)) == ()


def test_a_step_of_exactly_1_us_is_possible(make_record, make_spec):
    record = make_record(make_spec(gpu="cpu"), seconds=SHORTEST_STEP_S)
    assert impossible(record, derive(record)) == ()


def test_a_figure_that_no_golden_holds_is_a_refusal_and_no_traceback(make_record, make_spec):
    record = make_record(make_spec(gpu="cpu"), seconds=1e-14)
    refused(lambda: promote([record], PromotionOptions("r", "a", NOW)), "a step of less than 1 us", num=None)


def test_an_mfu_is_compared_with_the_peak_of_its_own_precision(make_record, make_spec):
    """1037 TFLOP/s are 52 % of what an H100 can do in fp8, and 105 % of what it can do in bf16."""
    fp8, bf16 = (make_record(make_spec(compute_dtype=dtype), seconds=1.7) for dtype in ("fp8_cs", "bf16"))
    assert impossible(fp8, derive(fp8)) == ()
    assert " 105 %" in impossible(bf16, derive(bf16))[0]


@pytest.mark.parametrize(
    ("metrics", "part"),
    [
        ({"tflops_per_gpu": 2500.0}, "2500 TFLOP.* fp8 .* h100, 1978.9 TFLOP"),
        ({"peak_allocated_bytes": 500 * GIB}, "above the 120.00 GiB"),
        ({"step_time_s": 9e-7}, " 9e-07 s"),
        ({"mfu": 1.01}, " 101 %"),
    ],
)
def test_a_golden_with_an_impossible_figure_gives_no_verdict(make_record, make_golden, metrics, part):
    record = make_record(seconds=2.5)
    golden = make_golden(record, {"tflops_per_gpu": 709.93} | metrics)
    [found] = impossible_golden(golden)
    assert re.search(part, found)
    _, comparison = compare_runs([record], GoldenSearch(golden, Path("g.json")), GateOptions())
    assert comparison.outcome is Verdict.INCONCLUSIVE


def test_a_golden_of_an_h100_with_94_gb_or_of_a_cpu_is_possible(make_record, make_spec, make_golden):
    metrics = {"peak_reserved_bytes": 94 * GIB, "step_time_s": 1e-6, "tflops_per_gpu": 709.0, "mfu": 1.0}
    assert impossible_golden(make_golden(make_record(seconds=2.5), metrics)) == ()
    on_cpu = make_golden(make_record(make_spec(gpu="cpu"), seconds=1.0), {"peak_allocated_bytes": 2**46})
    assert impossible_golden(on_cpu) == ()


def test_a_golden_of_an_unknown_gpu_is_checked_as_far_as_possible(make_record, make_golden):
    where = MeasuredOn(gpu="h9000")
    golden = make_golden(
        make_record(), {"step_time_s": 1e-9}, gpu="h9000", measured_on=where, spec={}, fingerprint=None
    )
    assert len(impossible_golden(golden)) == 1


@pytest.mark.parametrize(
    ("gpu", "dtype", "step", "peak", "num_problems"),
    [
        ("cpu", "fp32", (1.0, None), 900 * GIB, 0),
        ("h100", "bf16", (1.0, 989.0), 119 * GIB, 0),
        ("h100", "bf16", (1.0, 1001.0), 1, 1),
        ("h100", "bf16", (1.0, None), 121 * GIB, 1),
        ("", "", (1.0, 1001.0), 0, 1),
        ("", "", (SHORTEST_STEP_S, None), 1, 0),
        ("", "", (SHORTEST_STEP_S / 2, 1e6), 1024 * GIB, 3),
    ],
)
def test_figures_of_a_log_are_compared_with_the_gpu_of_its_golden(gpu, dtype, step, peak, num_problems):
    assert len(impossible_series("the log", [step], {"Peak": peak}, gpu, dtype)) == num_problems


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"metrics": {"tflops": {"value": 700}}}, ("metrics.tflops: ",)),
        ({"metrics": {"mfu": {"value": 0.5, "relative_spread": -1}}}, ("metrics.mfu.relative_spread: ",)),
        ({"recompute": "nonsense"}, ("recompute: ", "'nonsense'")),
        ({"num_gpus": 0}, ("num_gpus: ", " 1")),
        ({"num_gpus": 10**9}, ("num_gpus: ", " 1048576")),
        ({"num_runs": 10**9}, ("num_runs: ", " 10000")),
        ({"max_steps": 10**9}, ("max_steps: ", " 10000000")),
        ({"max_steps": -1}, ("max_steps: ", " 1")),
        ({"promoted_at": "soon"}, ("promoted_at: 'soon' ",)),
        ({"promoted_at": "2999-01-01T00:00:00Z"}, ("promoted_at: 2999-",)),
        ({"metrics": {"peak_allocated_byte": {"value": 7}}}, ("metrics.peak_allocated_byte: ",)),
    ],
)
def test_a_golden_that_would_mislead_a_gate_is_an_error_with_its_key(
    make_record, make_golden, tmp_path, change, expected
):
    document = json.loads(golden_text(make_golden(make_record(seconds=2.5), {"tflops_per_gpu": 700.0})))
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(document))
    assert isinstance(read_golden(path), GoldenRecord)
    path.write_text(json.dumps(document | change))
    refused(lambda: read_golden(path), f": {expected[0]}", *expected[1:], num=None)
