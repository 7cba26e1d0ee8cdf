"""The report as a reader sees it, at a terminal and through a pipe."""

import io
from pathlib import Path

from harness.judge.compare import compare_runs
from harness.judge.gate import run_outcome
from harness.measure.result import MAX_ROWS, run_page
from harness.measure.values import run_document
from harness.records.gating import GateOptions
from harness.records.goldens import GoldenSearch
from harness.records.rank import Failure
from harness.show.terminal import Console, print_page

RUN_DIR = Path("results/runs/20260102T030405Z-llama3_70b-0a1b2c3d")


def printed(record, golden=None, *, width=80, terminal=False, options=None, **console):
    search = GoldenSearch(golden, Path("results/golden/h100/x.json"), "no golden for these settings")
    metrics, comparison = compare_runs([record], search, options or GateOptions())
    out = io.StringIO()
    target = Console(file=out, width=width, force_terminal=terminal, **console)
    verdict = run_outcome(record.status, comparison)
    print_page(target, run_page(run_document(record, metrics, comparison, verdict, RUN_DIR, [record.run_id])))
    assert target.width == width
    return out.getvalue()


def rows(text, start):
    return [" ".join(line.split()) for line in text.splitlines() if line.startswith(start)]


def test_a_comparison_row_has_both_values_the_change_and_the_allowance(make_record, make_golden):
    record = make_record(seconds=2.5)
    text = printed(record, make_golden(record, {"tflops_per_gpu": 709.93, "peak_allocated_bytes": 50e9}))
    assert rows(text, "TFLOP/s/GPU")[0] == "TFLOP/s/GPU 709.64 709.93 -0.0 % -5.0 % pass"
    assert rows(text, "Peak allocated")[0] == "Peak allocated 54.02 GiB 46.57 GiB +16.0 % +5.0 % regression"


def test_what_was_asked_and_what_of_it_is_inert_stand_side_by_side(make_spec, make_record):
    text = printed(make_record(make_spec(recompute="core_attn,layernorm")), width=120)
    assert rows(text, "Recompute ") == ["Recompute core_attn,layernorm"]
    assert rows(text, "Recomputed") == ["Recomputed core_attn: 80 of 80 layers"]
    assert [row.startswith("No effect layernorm: ") for row in rows(text, "No effect")] == [True]


def test_few_ranks_are_all_shown_and_many_by_the_fullest_of_each_stage(make_spec, make_rank, make_record):
    few = printed(make_record(make_spec(gpu="cpu")))
    assert [line.split()[0] for line in few.splitlines() if line.endswith("  ok   ") or line.rstrip().endswith(" ok")] == [
        "0", "1",
    ]  # fmt: skip
    spec = make_spec()
    ranks = [make_rank(spec, rank) for rank in range(32)]
    ranks[13] = make_rank(spec, 13, finished=False, failure=Failure(kind="oom", message="x", phase="step", step=4))
    many = printed(make_record(spec, ranks=tuple(ranks), status="oom"), width=120)
    assert len(ranks) > MAX_ROWS
    shown = [line.split()[0] for line in many.splitlines() if line.rstrip().endswith((" ok", "oom after step 4"))]
    assert shown == ["0", "8", "13", "16", "24"]


def test_accepted_differences_and_caveats_are_named(make_spec, make_record, make_golden):
    golden = make_golden(make_record(), {"tflops_per_gpu": 709.0}, caveats=("no control",))
    options = GateOptions(accept_differences=("recompute",))
    text = printed(make_record(make_spec(recompute="mlp"), seconds=2.5), golden, options=options)
    assert "Accepted: recompute: golden core_attn, here mlp" in text
    assert "Caveat: no control" in text


def test_differences_that_withhold_a_verdict_come_with_the_way_out(make_record, make_golden):
    golden = make_golden(make_record(provenance={"driver_version": "1"}), {"tflops_per_gpu": 709.0})
    text = printed(make_record(seconds=2.5), golden)
    assert "driver_version: golden 1, here 550.54.15\n" in text
    assert "--accept_difference driver_version" in text


def test_a_difference_in_what_the_golden_does_not_hold_is_no_way_out(make_spec, make_record, make_golden):
    cpu, memory = make_spec(gpu="cpu"), {"peak_allocated_bytes": 58e9}
    record, elsewhere = make_record(cpu), make_record(cpu, provenance={"processor": "another processor"})
    text = printed(record, make_golden(elsewhere, memory))
    assert "--accept_difference" not in text
    timed = make_golden(elsewhere, memory | {"tflops_per_gpu": 0.1})
    assert "--accept_difference device_name" in printed(record, timed)


def test_a_suspect_run_says_why_it_concludes_nothing(make_record, make_golden):
    record = make_record(seconds=2.5, suspect=("GPU 0 was throttled",))
    text = printed(record, make_golden(record, {"tflops_per_gpu": 709.0, "peak_allocated_bytes": 58e9}))
    assert "Suspect: GPU 0 was throttled" in text
    assert "TFLOP/s/GPU, Peak allocated: suspect: GPU 0 was throttled" in text
    assert text.splitlines()[0].startswith("INCONCLUSIVE: GPU 0 was throttled; 2.500 s a step, ")


def test_a_run_that_was_out_of_memory_has_a_least_peak_and_no_change(make_spec, make_rank, make_record, make_golden):
    spec = make_spec(gpu="cpu")
    full = make_rank(
        spec, 0, finished=False, failure=Failure(kind="oom", message="x", phase="forward_backward", step=1)
    )
    lost = Failure(kind="error", message="RuntimeError: Connection closed by peer", phase="forward_backward", step=1)
    ranks = (full, make_rank(spec, 1, finished=False, failure=lost))
    record = make_record(spec, ranks=ranks, status="oom")
    text = printed(record, make_golden(record, {"peak_allocated_bytes": 100e9}), width=120)
    compared, *_, figure = rows(text, "Peak allocated")
    assert " at least " in figure
    assert " - +0.5 % inconclusive" in compared
    assert " rank 0 " in text
    assert "error in forward_backward" not in text


def test_a_rank_with_an_error_of_its_own_keeps_it_beside_one_out_of_memory(make_spec, make_rank, make_record):
    spec = make_spec(gpu="cpu")
    full = make_rank(spec, 0, finished=False, failure=Failure(kind="oom", message="x", phase="step", step=4))
    own = make_rank(
        spec, 1, finished=False, failure=Failure(kind="error", message="ValueError: 3", phase="step", step=4)
    )
    text = printed(make_record(spec, ranks=(full, own), status="oom"), width=120)
    assert "error after step 4" in text


def test_a_run_that_was_out_of_memory_says_which_kind_and_what_would_show_it(make_spec, make_rank, make_record):
    spec = make_spec()
    full = Failure(kind="oom", message="CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    text = printed(make_record(spec, ranks=(make_rank(spec, 0, 1.0, failure=full),), status="oom"))
    assert " (high): " in text and "Next: " in text
    assert " (high): " not in printed(make_record(spec))
