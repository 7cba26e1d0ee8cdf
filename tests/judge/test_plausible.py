"""Figures that cannot be true are named and give no verdict; figures that are only unusual stay a note."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.judge.compare import compare_runs
from harness.judge.derive import derive
from harness.judge.gate import Verdict
from harness.judge.metrics import METRICS
from harness.judge.plausible import impossible, remarkable
from harness.judge.plausible_golden import impossible_golden
from harness.judge.promotion import promote
from harness.predict.flops import layer_weights
from harness.predict.model_states import least_weight_bytes
from harness.records.golden import METRIC_NAMES, GoldenRecord, MeasuredOn, golden_text
from harness.records.goldens import GateOptions, GoldenSearch, read_golden
from harness.records.run import REPLAYED
from harness.units import GIB
from tests.conftest import LLAMA3_70B

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LLAMA3_8B = {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32, "num_query_groups": 8,
    "vocab_size": 128256,
}  # fmt: skip


def test_settings_that_were_changed_after_the_run_are_a_doubt(make_record, make_spec, make_golden):
    """Twice the layers are twice the FLOPs: the throughput would look twice as good."""
    record = make_record(seconds=2.5)
    larger = record.model_copy(update={"spec": make_spec(model=LLAMA3_70B | {"num_layers": 160})})
    (found,) = impossible(larger, derive(larger))
    assert found == (
        f"fingerprint: the record says {record.fingerprint}, its own settings have {larger.spec.fingerprint}"
    )
    with pytest.raises(BadRequestError, match="fingerprint: the record says"):
        promote([larger], reason="r", author="a", now=NOW)


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        (("2026-01-02T03:04:05Z", "2026-01-02T03:03:05Z"), "it finished at 2026-01-02T03:03:05Z, before its start at 2026-01-02T03:04:05Z"),
        (("yesterday", "2026-01-02T03:03:05Z"), "its times are not ISO-8601: started 'yesterday', finished '2026-01-02T03:03:05Z'"),
    ],
)  # fmt: skip
def test_a_run_ends_after_its_start(make_record, times, sentence):
    provenance = dict(zip(("started_at", "finished_at"), times, strict=True))
    record = make_record(seconds=2.5, provenance=provenance)
    assert impossible(record, derive(record)) == (sentence,)
    note = "the clock of this machine was set back by 60 s during the run; durations are not affected"
    noted = record.model_copy(update={"notes": (note,)})
    assert impossible(noted, derive(noted)) == ()
    slewed = make_record(seconds=2.5, provenance={"finished_at": "2026-01-02T03:04:01Z"})
    assert impossible(slewed, derive(slewed)) == ()


def test_a_replayed_run_took_less_time_than_its_steps(make_record):
    replayed = make_record(seconds=2.5, provenance={"duration_s": 0.1}, notes=(f"{REPLAYED}elsewhere",))
    assert impossible(replayed, derive(replayed)) == ()
    plain = replayed.model_copy(update={"notes": ()})
    assert impossible(plain, derive(plain)) == ("the steps take 2 min 05 s together, the whole run took 100.0 ms",)


def test_a_figure_that_no_golden_holds_is_a_refusal_and_no_traceback(make_record, make_spec):
    record = make_record(make_spec(gpu="cpu"), seconds=1e-14)
    with pytest.raises(BadRequestError, match="step_time_s: a golden holds values from"):
        promote([record], reason="r", author="a", now=NOW)


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


@pytest.mark.parametrize("threads", ["", "0", "4,2"])
def test_no_mfu_is_judged_on_a_cpu_and_no_speed_of_an_unknown_number_of_threads(make_record, make_spec, threads):
    record = make_record(make_spec(gpu="cpu"), seconds=2e-6, provenance={"environment": {"OMP_NUM_THREADS": threads}})
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
        ({"peak_allocated_bytes": 500 * GIB}, "peak_allocated_bytes of 500.00 GiB is more than 1.5 times the memory of h100, 120.00 GiB"),
        ({"peak_reserved_bytes": 94 * GIB}, ""),  # an H100 with 94 GB
        ({"step_time_s": 9e-7}, "step time of 9e-07 s is not possible"),
        ({"step_time_s": 1e-6}, ""),
        ({"mfu": 1.01}, "MFU of 101 % is not possible"),
        (
            {"peak_allocated_bytes": 1},
            "peak_allocated_bytes of 1 B is less than the parameters of its fullest stage, which have at least 4.47 GiB",
        ),
        (
            {"peak_allocated_bytes": 50 * GIB, "peak_reserved_bytes": 40 * GIB},
            "peak_reserved_bytes of 40.00 GiB is less than its peak_allocated_bytes, 50.00 GiB",
        ),
        (
            {"tflops_per_gpu": 0.71, "step_time_s": 2.5},
            "throughput and step time contradict each other: a step of 2.5 s of these settings is 709.64 TFLOP/s/GPU, not 0.71",
        ),
        ({"tflops_per_gpu": 709.0, "step_time_s": 2.5, "mfu": 1.0}, ""),
    ],
)  # fmt: skip
def test_a_golden_with_another_impossible_figure_gives_no_verdict(make_record, make_golden, metrics, what):
    record = make_record(seconds=2.5)
    assert impossible_golden(make_golden(record, metrics)) == ((f"the golden's {what}",) if what else ())
    golden = make_golden(record, {"tflops_per_gpu": derive(record).tflops_per_gpu.median} | metrics)
    if what:
        assert (
            compare_runs([record], GoldenSearch(golden, Path("g.json")), GateOptions())[1].outcome
            is Verdict.INCONCLUSIVE
        )


@pytest.mark.parametrize(
    ("metrics", "what"),
    [
        ({"step_time_s": 5e-7}, "step time of 5e-07 s is not possible"),
        ({"peak_allocated_bytes": 2**46 + 1}, "more than the memory of any server"),
        ({"peak_allocated_bytes": 1024}, "less than the parameters of its fullest stage"),
        (
            {"counted_flops_per_step": 91_226_111},
            "counted_flops_per_step of 91,226,111 is less than the matrix multiplications of its layers need, 182,452,224",
        ),
        ({"tflops_per_gpu": 1.0, "step_time_s": 1.0}, "throughput and step time contradict each other"),
    ],
)
def test_a_golden_of_a_cpu_is_checked_too(make_record, make_spec, make_golden, metrics, what):
    record = make_record(make_spec(gpu="cpu"), seconds=1.0)
    (found,) = impossible_golden(make_golden(record, metrics))
    assert what in found
    golden = make_golden(record, {"tflops_per_gpu": derive(record).tflops_per_gpu.median} | metrics)
    assert (
        compare_runs([record], GoldenSearch(golden, Path("g.json")), GateOptions())[1].outcome is Verdict.INCONCLUSIVE
    )


def test_a_golden_of_an_unknown_gpu_is_checked_as_far_as_possible(make_record, make_golden):
    where = MeasuredOn(gpu="h9000")
    golden = make_golden(
        make_record(), {"step_time_s": 1e-9}, gpu="h9000", measured_on=where, spec={}, fingerprint=None
    )
    assert impossible_golden(golden) == ("the golden's step time of 1e-09 s is not possible",)


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
        ({"metrics": {"mfu": {"value": 0.5, "relative_spread": -1}}}, "metrics.mfu.relative_spread: must be greater"),
        ({"recompute": "nonsense"}, "recompute: unknown recompute module 'nonsense'"),
        ({"num_gpus": 0}, "num_gpus: must be greater than or equal to 1"),
        ({"num_gpus": 10**9}, "num_gpus: must be less than or equal to 1048576"),
        ({"num_runs": 10**9}, "num_runs: must be less than or equal to 10000"),
        ({"run_ids": ["a", "b"]}, "num_runs: 1, but 2 runs in run_ids"),
        ({"max_steps": 10**9}, "max_steps: must be less than or equal to 10000000"),
        ({"max_steps": -1}, "max_steps: must be greater than or equal to 1"),
        ({"window": [50, 3]}, "window: [50, 3) is no window of the steps"),
        ({"window": [-1, 3]}, "window: [-1, 3) is no window of the steps"),
        ({"window": [3, 51], "max_steps": 50}, "window: [3, 51) is no window of 50 steps"),
        ({"promoted_at": "soon"}, "promoted_at: 'soon' is no ISO-8601 time"),
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
