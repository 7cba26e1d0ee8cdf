"""Ends that are not of memory: each is told from the others, with an advice of its own."""

import pytest

from harness.analysis.oom.classify import Ending, classify
from harness.analysis.oom.first_failure import first_failure
from harness.analysis.oom.other_ends import KNOWN_ENDS
from harness.records.logs.lines import log_lines

TRACEBACK = "Traceback (most recent call last):"
WATCHDOG = (
    "[rank5]:[E821 14:09:00.1 ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=118, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600032 milliseconds before timing out."
)
LOST_GPU = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."


@pytest.fixture(name="first")
def _first(tmp_path):
    def build(*lines):
        (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
        return first_failure(log_lines([tmp_path / "train.log"]))

    return build


@pytest.mark.parametrize(
    ("text", "oom_class", "reason", "advice"),
    [
        (WATCHDOG, "not_oom", "ranks waited in a collective", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
        ("RuntimeError: Connection closed by peer [10.0.0.2]:30711", "not_oom", "connection to another rank broke", "logs of all"),
        (LOST_GPU, "not_oom", "a GPU failed or was lost", "another node"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "not_oom", "a GPU failed", "another node"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711", "not_oom", "memory that is not its own", "compute-sanitizer"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "not_oom", "not its own", "CUDA_LAUNCH_BLOCKING"),
        ("RuntimeError: CUDA error: device-side assert triggered", "not_oom", "index out of range", "vocabulary"),
        ("Fatal Python error: Segmentation fault", "not_oom", "SIGSEGV", "PYTHONFAULTHANDLER"),
        ("OSError: [Errno 28] No space left on device", "not_oom", "a disk is full", "df -h"),
        ("Slurm: TIMEOUT after 30 min on n[1-4]", "time_limit", "Slurm: TIMEOUT after 30 min on n[1-4]", "--time_limit"),
        ("Slurm: REQUEUED 2 times, then NODE_FAIL (NodeDown) on n3", "node_failure", "Slurm: REQUEUED", "--exclude"),
        ("Slurm: CANCELLED by 1000", "not_oom", "Slurm: CANCELLED by 1000", "scancel"),
        ("Slurm: OUT_OF_MEMORY of a node's host memory", "host_memory", "memory of a node", "memory of the node, not of the GPU"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-21T16:00:00 DUE TO TIME LIMIT ***", "time_limit", "time limit",
         "fewer steps"),
    ],
)  # fmt: skip
def test_every_end_is_told_with_its_own_advice(text, oom_class, reason, advice):
    verdict = classify(text)
    assert (verdict.oom_class, verdict.confidence) == (oom_class, "high")
    assert reason in verdict.reason
    assert advice in verdict.next_experiment


@pytest.mark.parametrize(
    ("exit_code", "oom_class", "reason", "advice"),
    [
        (-11, "not_oom", "SIGSEGV", "built for another torch"),
        (139, "not_oom", "SIGSEGV", "built for another torch"),
        (-7, "not_oom", "SIGBUS", "/dev/shm"),
        (-6, "not_oom", "SIGABRT", "C++ exception"),
        (-15, "not_oom", "ended from outside", "who ended it"),
        (-9, "killed", "SIGKILL", "dmesg"),
    ],
)
def test_a_signal_is_told_by_its_number(exit_code, oom_class, reason, advice):
    verdict = classify("failed", Ending(exit_code=exit_code))
    assert verdict.oom_class == oom_class
    assert reason in verdict.reason
    assert advice in verdict.next_experiment


def test_an_error_of_python_with_its_traceback_is_surely_not_memory(first):
    verdict = first(TRACEBACK, '  File "/job/train.py", line 7, in main', "KeyError: 'lm_loss'").verdict
    assert (verdict.oom_class, verdict.confidence) == ("not_oom", "high")
    assert verdict.reason == "the program raised KeyError; memory is not what ended it"
    assert "traceback" in verdict.next_experiment


def test_an_error_without_a_traceback_is_less_sure(first):
    assert first("ValueError: something").verdict.confidence == "medium"


def test_a_lost_gpu_explains_the_errors_of_the_ranks(first):
    found = first(f"[rank0]: {TRACEBACK}", "[rank0]: RuntimeError: NCCL communicator was aborted on rank 0.", LOST_GPU)
    assert found.verdict.reason == "a GPU failed or was lost"
    assert [victim.rank for victim in found.victims] == [0]


def test_no_two_rows_give_the_same_advice_and_none_is_without():
    advice = [row.advice for row in KNOWN_ENDS]
    assert all(advice)
    assert len(set(advice)) == len(advice)
