"""What other settings of torch's allocator would have done for a job that ran out of memory."""

import json
import shlex
import sys
from dataclasses import replace

import pytest

from harness.diagnose.allocator import Trials, account_of, answer_of
from harness.diagnose.forecasts import planned, tried
from harness.diagnose.stages import refuted
from harness.diagnose.values import FailedRank, Trial
from harness.launch.environment import Host
from harness.units import GIB
from tests.diagnose.conftest import FRAGMENTED, FULL

JOB = ("-mr", "llama3_70b", "--task", "sft", "-g", "h100", "-c", "bf16", "-ng", "32", "-pp", "2", "--recompute", "none")
ROOM = pytest.approx(75.5 * GIB, abs=0.01 * GIB)  # 54.02 + 20.41 reserved, 1.07 free


OTHERS = ("", "expandable_segments:True", "max_split_size_mb:128")


def trials(*needs, source="replayed", is_own_known=True, texts=OTHERS):
    rows = [
        Trial(settings=text, reserved_bytes=int(need * GIB), fits_bytes=int(need * GIB), helps=need <= 75.5)
        for text, need in zip(texts, needs, strict=False)
    ]
    return Trials(tuple(rows), source, is_own_known)


def test_a_request_that_no_allocator_could_serve_needs_less_memory(case):
    answer = answer_of(case(FULL, spec=None))
    assert (answer.remedy, answer.confidence, answer.source) == ("less_memory", "high", "message")
    assert answer.missing_bytes == pytest.approx((73.48 + 3.91 - 73.48 - 1.94) * GIB - 812.44 * 2**20, abs=0.01 * GIB)


@pytest.mark.parametrize(("rank", "given_back_gib"), [(0, 78 - 54.02 - 20.41), (1, 0), (None, None)])
def test_a_retry_gives_back_what_the_rank_held_before_and_leaves_what_lies_beside_live_blocks(
    case, figures, rank, given_back_gib
):
    failed = rank if rank is None else FailedRank(rank, "oom", "memory", "in step 2", "train.log:7")
    answer = answer_of(case(FRAGMENTED, ranks=figures((0, 78), (0, 70)), failed=failed))
    assert answer.stranded_bytes == pytest.approx(20.41 * GIB, abs=0.01 * GIB)
    assert answer.available_bytes == ROOM
    assert answer.given_back_bytes == (given_back_gib and pytest.approx(given_back_gib * GIB, abs=0.01 * GIB))
    assert any("3.57 GiB" in text for text in account_of(answer, is_captured=False)) is (rank == 0)


@pytest.mark.parametrize(
    ("needs", "peak", "changes", "expected"),
    [
        ((78, 60, 77), 56.4, {}, ("expandable_segments", "high", 0)),
        ((78, 76, 75), 56.4, {}, ("max_split_size_mb", "high", 0)),
        ((80, 78, 77), 56.4, {}, ("less_memory", "high", 1.5)),
        ((80, 78, 77), 50, {}, ("less_memory", "medium", 1.5)),  # needs have what no prediction explains
        ((78, 60), 56.4, {"source": "estimated"}, ("expandable_segments", "low", 0)),
        ((78, 60), 56.4, {"is_own_known": False}, ("expandable_segments", "medium", 0)),
        ((60, 58), 56.4, {}, ("expandable_segments", "medium", 0)),  # more pieces than the replay has
        ((75.6, 75.4, 75.3), 56.4, {}, ("less_memory", "high", 0)),  # by less than a replay is sure of
    ],
)
def test_the_remedy_is_the_first_that_would_have_fitted(case, predicted, needs, peak, changes, expected):
    answer = answer_of(case(FRAGMENTED, prediction=predicted(peak)), trials(*needs, **changes))
    assert (answer.remedy, answer.confidence, round(answer.missing_bytes / GIB, 1)) == expected


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ((67.13, 67.12, 65.36), ("max_split_size_mb", "max_split_size_mb:128", "medium")),
        ((67.13, 67.12, 67.0), ("less_memory", None, "low")),
        ((80, 74, 73), ("max_split_size_mb", "max_split_size_mb:512", "high")),
        ((), ("max_split_size_mb", "max_split_size_mb:128", "low")),  # nothing was replayed
    ],
)
def test_beside_pools_a_split_size_is_named_that_frees_enough_or_the_most(case, predicted, needs, expected):
    texts = ("", "max_split_size_mb:512", "max_split_size_mb:128")
    job = case(FRAGMENTED, prediction=predicted(56.4), pools_in_log="NCCL's user buffers")
    answer = answer_of(job, trials(*needs, texts=texts) if needs else None)
    assert (answer.remedy, answer.settings, answer.confidence) == expected


@pytest.mark.slow
def test_iterations_that_ran_refute_a_prediction_that_says_none_fits(case, predicted):
    """54.02 + 2.38 GiB were needed of 75.5: nothing is planned or replayed from a step of 80 GiB."""
    ran, host = case(FRAGMENTED, prediction=predicted(80), num_iterations=7), Host(sys.executable, "login", 2, {})
    assert refuted(ran)
    assert tried(ran, host) is None
    assert planned(ran, host)[1].problem == refuted(ran)
    assert (answer_of(ran).remedy, answer_of(ran).confidence) == ("expandable_segments", "medium")
    for changes in ({"num_iterations": 1}, {"prediction": predicted(70)}):
        assert not refuted(replace(ran, **changes))
    assert not refuted(case(FULL, prediction=predicted(90), num_iterations=7))  # this step may have been a larger one


def test_expandable_segments_are_never_advised_beside_pools_that_exclude_them(mbr_perf, tmp_path):
    log = tmp_path / "train.log"
    for line, whose in (
        ("[torch_memory_saver.cpp] TorchMemorySaver::pause", "torch_memory_saver"),
        ("vllm/device_allocator/cumem.py:150", "vLLM's sleep mode"),
        ("  nccl_ub ......................................... True", "NCCL's user buffers"),
    ):
        log.write_text(f"{line}\n[rank0]: {FRAGMENTED}\n")
        answer = json.loads(mbr_perf("diagnose", str(log), "--json").out)
        assert answer["verdict"]["class"] == "fragmentation"
        assert (answer["allocator"]["remedy"], answer["allocator"]["excluded"]) == ("max_split_size_mb", whose)
        assert not any("segments:True" in f"{fix['text']} {fix['command']}" for fix in answer["fixes"])


@pytest.mark.slow
def test_a_job_with_settings_is_replayed_under_others(mbr_perf, tmp_path):
    log = tmp_path / "full.log"
    log.write_text(f"[rank3]: {FULL}\n")
    answer = json.loads(mbr_perf("diagnose", str(log), *JOB, "--json").out)["allocator"]
    assert (answer["source"], answer["remedy"], answer["confidence"]) == ("replayed", "less_memory", "high")
    own, expandable, *_ = (row["fits_bytes"] for row in answer["trials"])
    assert answer["available_bytes"] < expandable < own
    assert answer["missing_bytes"] > 0


@pytest.mark.slow
def test_the_jobs_other_settings_of_the_allocator_stay_in_the_line_to_paste(mbr_perf, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f"[rank3]: {FRAGMENTED}\n")
    own, job = (
        "roundup_power2_divisions:4,expandable_segments:False",
        shlex.split("-mr llama3_8b -g h100 -c bf16 -ng 8"),
    )
    answer = mbr_perf("diagnose", log, *job, "--recompute", "none", "-E", f"PYTORCH_CUDA_ALLOC_CONF={own}")
    settings = "roundup_power2_divisions:4,expandable_segments:True"
    assert f"   export PYTORCH_CUDA_ALLOC_CONF={settings}" in answer.out.splitlines()


@pytest.mark.parametrize("options", [(), ("-E", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")])
def test_expandable_segments_that_are_on_are_not_advised(mbr_perf, tmp_path, options):
    """In the optimizer step, too. An option says it for a log that does not, and needs no recipe."""
    log = tmp_path / "train.log"
    shown = "" if options else "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    step = '  File "/opt/megatron/core/optimizer/optimizer.py", line 570, in step_with_ready_grads'
    log.write_text(f"{shown}[rank5]: Traceback (most recent call last):\n[rank5]: {step}\n[rank5]: {FRAGMENTED}\n")
    answer = json.loads(mbr_perf("diagnose", log, *options, "--json").out)
    assert (answer["verdict"]["class"], answer["verdict"]["confidence"]) == ("fragmentation", "low")
    assert (answer["verdict"]["when"], answer["job"]["expandable_segments"]) == ("in optimizer_step", True)
    assert not any("segments:True" in fix["command"] for fix in answer["fixes"] if fix["command"])
    refused = mbr_perf("diagnose", log, "-E", "1=1", "--json")
    assert refused.code == 2


def test_the_row_of_the_allocator_fits_into_80_columns(mbr_perf, tmp_path):
    log = tmp_path / "train.log"
    for text in (FRAGMENTED, FULL):
        log.write_text(f"[rank3]: {text}\n")
        (row,) = (line for line in mbr_perf("diagnose", log).out.splitlines() if line.startswith("Allocator"))
        assert len(row) <= 80


@pytest.mark.slow
def test_pools_of_cuda_graphs_are_no_memory_that_a_prediction_lacks(mbr_perf, tmp_path):
    log, need = tmp_path / "train.log", 66.9 + 448 / 1024
    step = "iteration {0}/ 50 | elapsed time per iteration (ms): 2612.1 | lm loss: 11.2 |"
    pools = (
        "66.90 GiB is allocated by PyTorch, with 9.10 GiB allocated in private pools (e.g., CUDA Graphs), and 6.20 GiB"
    )
    text = FRAGMENTED.replace("54.02 GiB is allocated by PyTorch, and 20.41 GiB", pools)
    text = text.replace("2.31 GiB", "448.00 MiB").replace("1.07 GiB", "312.00 MiB")
    log.write_text("\n".join((*map(step.format, range(1, 8)), f"[rank1]: {text}", "")))
    answer = json.loads(mbr_perf("diagnose", log, *JOB[:6], "-c", "fp8_cs", "-ng", "32", "--json").out)
    stage, more = answer["expected"]["stage"], answer["expected"]["unexplained_bytes"]
    assert stage["total"] < need * GIB < stage["whole_run"] < stage["total"] + stage["pool"]
    assert more == pytest.approx(need * GIB - stage["total"] - stage["pool"], abs=0.01 * GIB)
    assert (answer["allocator"]["remedy"], answer["allocator"]["source"]) == ("expandable_segments", "estimated")
    own, expandable, *_ = answer["allocator"]["trials"]
    assert (own["helps"], expandable["helps"]) == (False, True)
    assert "expandable_segments:True" in answer["fixes"][0]["command"]
