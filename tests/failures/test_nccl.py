"""Failures of NCCL: faults of the launch, of the network, and the rank that the others wait for.

The texts follow the formats in the sources of NCCL (init.cc, misc/ibvwrap.cc, transport/net_ib) and of torch (NCCLUtils.cpp,
ProcessGroupNCCL.cpp).
"""

import pytest

TRACEBACK = "Traceback (most recent call last):"
FRAME = '  File "/job/train.py", line 7, in main'
BACKEND = "torch.distributed.DistBackendError: NCCL error in: ../c10d/NCCLUtils.hpp:317, {}, NCCL version 2.21.5"
DUPLICATE = "Duplicate GPU detected : rank {} and rank {} both on CUDA device 5a000"
USAGE = "invalid usage (run with NCCL_DEBUG=WARN for details)"
SYSTEM = "unhandled system error (run with NCCL_DEBUG=INFO for details)"
MODIFY_QP = (
    "n1:77:99 [2] misc/ibvwrap.cc:376 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_2:1, "
    "curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.1.0.7, remote GID ::ffff:10.1.0.9"
)
COMPLETION = (
    "n1:77:99 [0] transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion from peer 10.1.0.9<40113> with "
    "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 localGid ::ffff:10.1.0.7 hca mlx5_0"
)


def of_rank(rank, *lines):
    return [f"[rank{rank}]: {line}" for line in lines]


USED_WRONGLY = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."


@pytest.mark.parametrize(
    "lines",
    [
        of_rank(0, TRACEBACK, FRAME, BACKEND.format(USAGE), USED_WRONGLY, "Last error:", DUPLICATE.format(0, 1)),
        [f"n1:77:99 [0] init.cc:943 NCCL WARN {DUPLICATE.format(0, 1)}", TRACEBACK, BACKEND.format(USAGE)],
    ],
)  # fmt: skip
def test_two_processes_on_one_gpu_are_a_fault_of_the_launch(first, lines):
    verdict = first(*lines).verdict
    assert (verdict.entry, verdict.oom_class, verdict.confidence) == ("one_gpu_twice", "not_oom", "high")


@pytest.mark.parametrize(
    "line",
    [
        MODIFY_QP,
        COMPLETION,
        "n1:77:99 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",
        "n1:77:99 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.1.0.9<40113> failed : Connection refused",
    ],
)
def test_nccls_line_about_the_network_says_more_than_torchs_error(first, line):
    found = first(*of_rank(2, TRACEBACK, BACKEND.format(SYSTEM)), line)
    assert (found.verdict.entry, found.failure.where[-2:]) == ("network", ":3")


def timed_out(rank, number, operation="ALLREDUCE", group=""):
    return (
        f"[rank{rank}]:[E821 14:09:00.{rank} ProcessGroupNCCL.cpp:616] [{group}Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600032 "
        "milliseconds before timing out."
    )


def status(rank, at, enqueued, completed, group="PG ID 0 PG GUID 0(default_pg) "):
    return (
        f"[rank{rank}]:[E821 14:09:01.{rank} ProcessGroupNCCL.cpp:2168] [{group}Rank {rank}]  failure detected by watchdog at work "
        f"sequence id: {at} PG status: last enqueued work: {enqueued}, last completed work: {completed}"
    )


def test_the_rank_whose_collective_is_behind_is_the_one_that_the_others_wait_for(first):
    found = first(timed_out(0, 118), timed_out(1, 118), timed_out(3, 117, "ALLGATHER"), timed_out(2, 118))
    assert (found.failure.rank, found.verdict.confidence) == (3, "medium")
    assert "117" in found.verdict.reason and "118" in found.verdict.reason
    assert found.failure.where.endswith(":3")


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("     [5] finished collective #6, but didn't join collective #7 (count from 1)", "rank 5"),
        (
            " - To our best knowledge, ranks [5, 6] are the lagging ranks that caused this timeout. They never joined any collectives",
            "ranks 5, 6",
        ),
    ],
)
def test_torchs_own_report_names_the_rank_that_did_not_join(first, line, ranks):
    found = first(timed_out(0, 7), timed_out(1, 7), " - [0] Timeout at collective: ALLREDUCE, #7", line)
    assert (found.failure.rank, found.verdict.confidence) == (5, "high")
    assert ranks in found.verdict.reason
    assert found.failure.where.endswith(":4")


def test_a_rank_that_reported_no_time_out_is_named(first):
    found = first(
        timed_out(1, 7), timed_out(3, 7), timed_out(2, 7), "Some NCCL operations have failed or timed out. Due to the"
    )
    assert "rank 0" in found.verdict.reason
    assert [other.rank for other in found.others] == [3, 2]
    assert "rank 0" not in first(timed_out(3, 7)).verdict.reason


@pytest.mark.parametrize(
    "line", ["failed (exitcode: -6) local_rank: 0 (pid: 7) of binary: /usr/bin/python", "return code = -6"]
)
def test_the_abort_of_a_rank_that_waited_too_long_is_a_consequence(first, line):
    found = first(timed_out(0, 7), ABORTED, line)
    assert (found.failure.rank, found.verdict.entry) == (0, "collective_timeout")
    cut = first("Exception raised from ncclCommWatchdog at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:7", line)
    assert cut.verdict.entry == "watchdog_ended"


ABORTED = "terminate called after throwing an instance of 'c10::DistBackendError'"
WHAT = "  what():  [PG ID {} PG GUID {} Rank {}] Process group watchdog thread terminated with exception: {}"
WORK = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000)"


@pytest.mark.parametrize(
    "after",
    [
        [ABORTED, WHAT.format(0, "0(default_pg)", 0, WORK.format(0, 118))],
        [ABORTED, WHAT.format(3, "9(TENSOR_MODEL_PARALLEL_GROUP)", 0, WORK.format(0, 118))],
        [ABORTED, WHAT.format(0, "0(default_pg)", 0, "[Rank 0] NCCL watchdog thread terminated")],
        ["[rank0]: torch.distributed.DistBackendError: [Rank 0] watchdog thread terminated"],
        of_rank(0, TRACEBACK, FRAME, "torch.distributed.DistBackendError: [Rank 0] watchdog thread terminated"),
    ],
)
def test_how_the_watchdog_ends_a_rank_does_not_hide_the_rank_that_the_others_wait_for(first, after):
    found = first(timed_out(0, 118), timed_out(1, 118), timed_out(3, 117), timed_out(2, 118), *after)
    assert found.failure.rank == 3
    assert found.verdict.entry == "collective_timeout"
    assert found.failure.where.endswith(":3")


def test_a_watchdog_that_ends_a_rank_for_another_reason_does_not_say_that_ranks_waited(first):
    ended = WHAT.format(0, "0(default_pg)", 2, "CUDA error: an illegal memory access was encountered")
    assert first(timed_out(0, 118), timed_out(1, 118), ABORTED, ended).verdict.entry == "illegal_access"
    alone = first("[rank0]: torch.distributed.DistBackendError: [Rank 0] watchdog thread terminated").verdict
    assert (alone.entry, alone.oom_class, alone.confidence) == ("watchdog_ended", "unknown", "low")


def test_what_a_rank_enqueued_last_is_the_better_evidence(first):
    """All time out in the same collective; one has not even enqueued the next."""
    lines = [
        line
        for rank in (0, 1, 2, 3)
        for line in (timed_out(rank, 118), status(rank, 118, 118 if rank == 2 else 120, 117))
    ]
    found = first(*lines)
    assert (found.failure.rank, found.verdict.confidence) == (2, "high")


def test_numbers_of_different_groups_are_not_compared(first):
    lines = [status(0, 9, 9, 8), status(1, 9, 9, 8), status(0, 400, 400, 399, "PG ID 1 PG GUID 5 "),
             status(2, 400, 400, 399, "PG ID 1 PG GUID 5 ")]  # fmt: skip
    assert "reached collective" not in first(*lines).verdict.reason


@pytest.mark.parametrize("numbers", [(118, 118), (118, 117, 117, 117), (7,)])
def test_where_nobody_is_behind_nobody_is_named(first, numbers):
    found = first(*(timed_out(rank, number) for rank, number in enumerate(numbers)))
    assert "reached collective" not in found.verdict.reason
    assert found.failure.rank == 0
