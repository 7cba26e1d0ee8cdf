"""Figures that cannot be true are named and give no verdict; figures that are only unusual stay a note."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.judging.compare import compare_runs
from harness.judging.derive import derive
from harness.judging.gate import Verdict
from harness.judging.metrics import METRICS
from harness.judging.plausible import doubts_of, impossible, impossible_golden, remarkable
from harness.judging.promotion import promote
from harness.night.history.record import history_record
from harness.planning.flops import layer_weights
from harness.planning.model_states import least_weight_bytes
from harness.records.golden import METRIC_NAMES, GoldenRecord, golden_text
from harness.records.goldens import GateOptions, GoldenSearch, read_golden
from harness.records.rank import Coordinates, MemoryRecord, StepRecord
from harness.units import GIB
from tests.conftest import LLAMA3_70B

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LLAMA3_8B = {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32, "num_query_groups": 8,
    "vocab_size": 128256,
}  # fmt: skip


def changed(record, at, /, **changes):
    """The record with one rank's fields replaced."""
    ranks = tuple(own.model_copy(update=changes) if own.rank == at else own for own in record.ranks)
    return record.model_copy(update={"ranks": ranks})


def memory(**peaks):
    return MemoryRecord(meter="cuda", **peaks)


def steps(seconds, numbers=range(50)):
    return tuple(StepRecord(step=step, seconds=seconds, loss=11.0 - step / 10) for step in numbers)


DAMAGE = {
    "world size": (1, {"world_size": 8}, "rank 1: world_size is 8, the run has 32 GPUs"),
    "unfinished": (2, {"finished": False}, "rank 2: did not finish (finished: false), although the run ended well"),
    "other number": (3, {"rank": 4}, "rank 4: recorded 2 times"),
    "no such rank": (3, {"rank": 32}, "rank 32: no such rank in a run of 32 GPUs"),
    "twice": (0, {"steps": steps(2.5, [*range(50), 7])}, "rank 0: step 7 is recorded more than once"),
    "too short": (0, {"steps": steps(9e-7)}, "rank 0: a step of less than 1 us is not possible"),
    "zero": (5, {"memory": memory(max_allocated_bytes=0)}, "rank 5: peak allocated is 0 bytes"),
    "negative": (5, {"memory": memory(max_reserved_bytes=-1)}, "rank 5: peak reserved is -1 bytes"),
    "empty device": (6, {"memory": memory(max_device_used_bytes=0)}, "rank 6: peak device used is 0 bytes"),
    "no such stage": (4, {"coordinates": Coordinates(tp=0, pp=9, dp=0, cp=0, ep=0)}, "rank 4: pipeline stage 9 of 4"),
    "beyond the device": (
        5,
        {"memory": memory(max_allocated_bytes=80 * GIB + 1, device_total_bytes=80 * GIB)},
        "rank 5: peak allocated of 80.00 GiB is more than the device has, 80.00 GiB",
    ),
    "beyond every card": (
        5,
        {"memory": memory(max_reserved_bytes=500 * GIB)},
        "rank 5: peak reserved of 500.00 GiB is more than the device has, 120.00 GiB",
    ),
    "below weights": (
        9,
        {"memory": memory(max_allocated_bytes=1 << 30)},
        "rank 9: peak allocated of 1.00 GiB is less than the rank's parameters, which have at least 3.98 GiB",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_an_impossible_figure_is_named_and_is_neither_an_improvement_nor_a_golden(make_record, make_golden, case):
    rank, changes, sentence = DAMAGE[case]
    whole = make_record(seconds=2.5)
    assert impossible(whole, derive(whole)) == ()
    record = changed(whole, rank, **changes)
    assert sentence in impossible(record, derive(record))

    golden = make_golden(whole, {"tflops_per_gpu": 1.0, "peak_allocated_bytes": 10**12})
    search = GoldenSearch(golden, Path("golden.json"))
    _, comparison = compare_runs([record], search, GateOptions())
    assert comparison.outcome is Verdict.INCONCLUSIVE
    reasons = [finding.reason for finding in comparison.findings if finding.threshold]
    assert reasons
    assert all(f"suspect: {sentence}" in reason for reason in reasons)
    assert compare_runs([record], GoldenSearch(None, None, "none"), GateOptions())[1].outcome is Verdict.INCONCLUSIVE
    with pytest.raises(BadRequestError) as refused:
        promote([record], reason="r", author="a", now=NOW)
    assert sentence in str(refused.value)
    assert sentence in history_record(record, derive(record)).suspect


def test_ranks_with_the_same_problem_share_a_sentence(make_record):
    record = make_record(seconds=2.5)
    for rank in (4, 5, 6, 31):
        record = changed(record, rank, finished=False)
    assert impossible(record, derive(record)) == (
        "ranks 4-6, 31: did not finish (finished: false), although the run ended well",
    )


def test_a_run_that_failed_has_partial_figures_and_no_further_doubt(make_record):
    record = changed(make_record(seconds=2.5, status="failed", failure="x"), 1, finished=False)
    assert doubts_of(record, derive(record)) == ()


@pytest.mark.parametrize(
    ("seconds", "is_possible", "is_usual"), [(0.85, False, True), (0.95, True, False), (1.5, True, True)]
)
def test_an_mfu_above_the_dense_peak_is_a_doubt_and_a_high_one_a_note(make_record, seconds, is_possible, is_usual):
    record = make_record(seconds=seconds)
    metrics = derive(record)
    assert (not impossible(record, metrics), not remarkable(record, metrics)) == (is_possible, is_usual)
    if not is_possible:
        assert "at its dense fp8 peak" in impossible(record, metrics)[0]


def test_an_mfu_is_compared_with_the_peak_of_its_own_precision(make_record, make_spec):
    """1037 TFLOP/s are 52 % of what an H100 can do in fp8, and 105 % of what it can do in bf16."""
    fp8, bf16 = (make_record(make_spec(compute_dtype=dtype), seconds=1.7) for dtype in ("fp8_cs", "bf16"))
    assert impossible(fp8, derive(fp8)) == ()
    assert "an MFU of 105 % is not possible" in impossible(bf16, derive(bf16))[0]


def test_no_mfu_is_judged_on_a_cpu(make_record, make_spec):
    record = make_record(make_spec(gpu="cpu"), seconds=2e-6)
    assert (impossible(record, derive(record)), remarkable(record, derive(record))) == ((), ())


def test_a_high_mfu_is_a_caveat_of_the_comparison(make_record, make_golden):
    record = make_record(seconds=1.1)
    golden = make_golden(record, {"tflops_per_gpu": derive(record).tflops_per_gpu.median})
    _, comparison = compare_runs([record], GoldenSearch(golden, Path("g.json")), GateOptions())
    assert comparison.outcome is Verdict.PASS
    assert any("is unusually high" in caveat for caveat in comparison.likeness.caveats)


def test_a_golden_above_the_peak_of_its_gpu_gives_no_verdict(make_record, make_golden):
    record = make_record(seconds=2.5)
    golden = make_golden(record, {"tflops_per_gpu": 2500.0})
    assert impossible_golden(golden) == (
        "the golden's 2500 TFLOP/s/GPU are above the dense fp8 peak of h100, 1978.9 TFLOP/s",
    )
    _, comparison = compare_runs([record], GoldenSearch(golden, Path("g.json")), GateOptions())
    assert comparison.outcome is Verdict.INCONCLUSIVE
    assert impossible_golden(make_golden(record, {"tflops_per_gpu": 709.93})) == ()


@pytest.mark.parametrize(
    ("metrics", "what"),
    [
        ({"peak_allocated_bytes": 500 * GIB}, "peak_allocated_bytes of 500.00 GiB is more than the memory of h100, 80.00 GiB"),
        ({"peak_reserved_bytes": 94 * GIB}, ""),  # an H100 with 94 GB
        ({"step_time_s": 9e-7}, "step time of 9e-07 s is not possible"),
        ({"step_time_s": 1e-6}, ""),
    ],
)  # fmt: skip
def test_a_golden_with_another_impossible_figure_gives_no_verdict(make_record, make_golden, metrics, what):
    record = make_record(seconds=2.5)
    golden = make_golden(record, {"tflops_per_gpu": derive(record).tflops_per_gpu.median} | metrics)
    assert impossible_golden(golden) == ((f"the golden's {what}",) if what else ())
    if what:
        assert (
            compare_runs([record], GoldenSearch(golden, Path("g.json")), GateOptions())[1].outcome
            is Verdict.INCONCLUSIVE
        )


def test_the_least_weights_of_llama3_8b_are_its_matrices(make_spec):
    spec = make_spec(num_gpus=1, compute_dtype="bf16", model=LLAMA3_8B, parallelism={})
    assert layer_weights(spec.model, "dense") == (218_103_808, 0)
    assert least_weight_bytes(spec) == (2 * 8_029_995_008,)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"parallelism": {"tensor_model_parallel_size": 8}}, 1 / 8),
        ({"parallelism": {}, "ddp": {"use_megatron_fsdp": True}}, 1 / 32),
        ({"parallelism": {"tensor_model_parallel_size": 4}, "ddp": {"use_megatron_fsdp": True}}, 1 / 32),
        ({"parallelism": {"context_parallel_size": 4}}, 1.0),
    ],
)
def test_a_rank_holds_only_its_own_share_of_the_weights(make_spec, changes, share):
    whole = 2 * (80 * 855_638_016 + 2 * 128256 * 8192)
    assert least_weight_bytes(make_spec(compute_dtype="bf16", **changes)) == (whole * share,)


def test_experts_are_split_over_their_own_ranks(make_spec):
    model = LLAMA3_70B | {
        "num_layers": 2,
        "moe": {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 4096},
    }
    sizes = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1}
    spec = make_spec(compute_dtype="bf16", num_gpus=8, model=model, parallelism=sizes)
    attention, expert, tables = 2 * 150_994_944, 2 * 8 * 3 * 8192 * 4096, 2 * 128256 * 8192
    assert least_weight_bytes(spec) == (2 * ((attention + tables) / 2 + expert / 4),)


def test_layers_that_are_offloaded_do_not_count(make_spec):
    spec = make_spec(compute_dtype="bf16", parallelism={}, offload={"cpu_offloading_num_layers": 79})
    assert least_weight_bytes(spec) == (2 * (855_638_016 + 2 * 128256 * 8192),)


def test_a_golden_may_hold_the_metrics_of_the_table():
    assert tuple(metric.name for metric in METRICS) == METRIC_NAMES


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"num_gpus": 64}, "num_gpus: the header says 64, the golden's own settings say 32"),
        ({"compute_dtype": "bf16"}, "compute_dtype: the header says bf16, the golden's own settings say fp8_cs"),
        ({"recompute": "mlp"}, "recompute: the header says mlp, the golden's own settings say core_attn"),
        (
            {"fingerprint": "0123456789abcdef"},
            "fingerprint: the header says 0123456789abcdef, the golden's own settings",
        ),
        ({"gpu": "h200"}, "gpu: the header says h200, the golden's own settings say h100"),
        ({"metrics": {"tflops": {"value": 700}}}, "metrics.tflops: no such metric"),
        (
            {"metrics": {"peak_allocated_byte": {"value": 7}}},
            "metrics.peak_allocated_byte: no such metric, did you mean 'peak_allocated_bytes'",
        ),
    ],
)
def test_a_golden_that_contradicts_itself_is_an_error_with_its_key(
    make_record, make_golden, tmp_path, change, expected
):
    document = json.loads(golden_text(make_golden(make_record(seconds=2.5), {"tflops_per_gpu": 700.0})))
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(document))
    assert isinstance(read_golden(path), GoldenRecord)
    path.write_text(json.dumps(document | change))
    with pytest.raises(BadRequestError) as refused:
        read_golden(path)
    assert f"{path}: {expected}" in str(refused.value)
