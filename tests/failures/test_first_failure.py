"""Of many ranks that failed, the one that failed by itself: kind of evidence first, then time."""

from pathlib import Path

import pytest

from harness.failures.failure_scan import MAX_TEXT
from harness.failures.failure_signs import sign_of
from harness.failures.first_failure import first_failure
from harness.foreign.logs.lines import log_lines

LOGS = Path(__file__).parents[1] / "data" / "logs"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 1 has a total capacity of 79.11 GiB of which "
    "1.94 GiB is free. Including non-PyTorch memory, this process has 77.16 GiB memory in use. Of the allocated memory "
    "73.48 GiB is allocated by PyTorch, and 812.44 MiB is reserved by PyTorch but unallocated."
)
TRACEBACK = "Traceback (most recent call last):"
FORWARD = '  File "/opt/megatron/core/pipeline_parallel/schedules.py", line 402, in forward_step'
IN_MLP = '  File "/opt/megatron/core/transformer/mlp.py", line 151, in forward'
CODE = "    output, bias = self.linear_fc2(intermediate)"
LOST_PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:30711"
WATCHDOG = "[E821 14:09:00.1 ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=118)"
STEP_12 = " [2026-08-21 14:03:27] iteration       12/      50 | consumed samples: 1536 | lm loss: 1.17E+01 |"


def of_rank(rank, *lines):
    return [f"[rank{rank}]: {line}" for line in lines]


def found(folder, *lines, name="train.log"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return first_failure(log_lines([path]))


def summary(*entries, root):
    """torchrun's table: (rank, exit code) of each."""

    def entry(number, rank, code):
        return [f"[{number}]:", "  time      : 2026-08-21_14:03:30", "  host      : node07",
                f"  rank      : {rank} (local_rank: {rank % 8})", f"  exitcode  : {code} (pid: {900 + rank})",
                "  error_file: <N/A>", "  traceback : To enable traceback see: https://pytorch.org/docs"]  # fmt: skip

    listed = [line for number, (rank, code) in enumerate(entries, 1) for line in entry(number, rank, code)]
    head = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    return [head, "=" * 60, "train.py FAILED", "-" * 60, "Failures:", *listed, "-" * 60,
            "Root Cause (first observed failure):", *entry(0, *root), "=" * 60]  # fmt: skip


def test_out_of_memory_is_the_cause_although_another_rank_spoke_first(tmp_path):
    first = found(
        tmp_path,
        STEP_12,
        *of_rank(0, TRACEBACK, LOST_PEER),
        *of_rank(1, TRACEBACK, FORWARD, IN_MLP, CODE, OOM),
        *of_rank(2, TRACEBACK, "ValueError: something else"),
    )
    failure = first.failure
    assert (failure.kind, failure.rank, failure.after_step, failure.phase) == ("oom", 1, 12, "forward_backward")
    assert failure.text == OOM
    assert failure.where == f"{tmp_path}/train.log:8"
    assert [line.text for line in failure.evidence] == [OOM, IN_MLP.strip()]
    assert (first.verdict.oom_class, first.verdict.confidence) == ("capacity", "high")
    assert sorted((victim.rank, victim.kind) for victim in first.others) == [(0, "peer"), (2, "error")]


def test_a_killed_rank_is_the_cause_before_any_error_of_python(tmp_path):
    first = found(
        tmp_path,
        *of_rank(0, TRACEBACK, LOST_PEER),
        *of_rank(1, TRACEBACK, "KeyError: 'after the peer had gone'"),
        *summary((0, 1), (1, 1), root=(3, -9)),
    )
    assert (first.failure.kind, first.failure.rank, first.failure.exit_code) == ("signal", 3, -9)
    assert first.failure.host == "node07"
    assert first.verdict.oom_class == "killed"


def test_an_error_of_python_is_the_cause_before_a_lost_peer(tmp_path):
    first = found(
        tmp_path,
        *of_rank(0, TRACEBACK, LOST_PEER),
        *of_rank(3, TRACEBACK, FORWARD, "RuntimeError: CUDA error: device-side assert triggered"),
    )
    assert (first.failure.kind, first.failure.rank, first.failure.phase) == ("error", 3, "forward_backward")
    assert first.verdict.oom_class == "not_oom"


def test_of_several_errors_the_earliest_counts_where_the_logs_tell_the_time(tmp_path):
    for rank, time in ((0, "14:03:31"), (1, "14:03:29"), (2, "14:03:30")):
        lines = [f"[2026-08-21 {time}] training", TRACEBACK, f"ValueError: of rank {rank}"]
        (tmp_path / f"rank_{rank}.log").write_text("\n".join(lines))
    first = first_failure(log_lines([tmp_path]))
    assert first.failure.rank == 1
    assert [failure.rank for failure in first.others] == [0, 2]


def test_a_text_without_a_rank_is_given_the_only_rank_that_torchrun_lists_with_an_error(tmp_path):
    first = found(tmp_path, TRACEBACK, IN_MLP, OOM, *summary((0, -15), (1, -15), root=(6, 1)))
    assert (first.failure.kind, first.failure.rank, first.failure.host) == ("oom", 6, "node07")
    of_several = found(tmp_path, TRACEBACK, OOM, *summary((0, 1), root=(6, 1)))
    assert (of_several.failure.kind, of_several.failure.rank) == ("oom", None)


def test_a_traceback_inside_torchruns_table_is_that_ranks(tmp_path):
    table = summary((0, 1), root=(6, 1))
    where = table.index("  exitcode  : 1 (pid: 906)") + 2
    table[where] = f"  traceback : {TRACEBACK}"
    first = found(tmp_path, *table[: where + 1], f"    {IN_MLP}", "    ValueError: shapes differ", *table[where + 1 :])
    assert (first.failure.kind, first.failure.rank, first.failure.text) == ("error", 6, "ValueError: shapes differ")


def test_the_agents_line_is_no_further_rank_where_the_table_lists_them_all(tmp_path):
    line = "E0821 14:03:30.000000 77 torch/distributed/elastic/api.py:882] failed (exitcode: -9) local_rank: 3 (pid: 5) of binary"
    first = found(tmp_path, line, *summary((3, -9), root=(11, -9)))
    assert [first.failure.rank, *(failure.rank for failure in first.others)] == [11, 3]


def test_an_abort_after_a_lost_peer_is_not_the_cause(tmp_path):
    lines = [WATCHDOG, *of_rank(2, TRACEBACK, "ValueError: the cause"), *summary((2, 1), root=(5, -6))]
    first = found(tmp_path, *lines)
    assert (first.failure.kind, first.failure.rank) == ("error", 2)
    assert [(victim.rank, victim.kind) for victim in first.others] == [(5, "peer")]


def test_a_hang_leaves_only_timeouts_and_says_so(tmp_path):
    first = found(tmp_path, STEP_12, WATCHDOG, WATCHDOG.replace("Rank 5", "Rank 6"))
    assert (first.failure.kind, first.failure.rank, first.failure.after_step) == ("peer", 5, 12)


TIME_LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-21T16:00:00 DUE TO TIME LIMIT ***"


def test_slurms_time_limit_explains_ranks_that_lost_their_peers(tmp_path):
    first = found(tmp_path, *of_rank(0, TRACEBACK, LOST_PEER), TIME_LIMIT)
    assert (first.failure.kind, first.failure.rank, first.failure.text) == ("peer", None, TIME_LIMIT)


@pytest.mark.parametrize(
    ("line", "kind", "exit_code"),
    [
        ("exitcode: -9", "signal", -9),
        ("job.sh: line 12:  4711 Killed                  python train.py", "signal", -9),
        ("Killed", "signal", -9),
        ("Segmentation fault (core dumped)", "signal", -11),
        ("container exited with exit code 137", "signal", 137),
        ("Command exit status: 139", "signal", 139),
        ("return code: -11", "signal", -11),
        ("traceback : Signal 9 (SIGKILL) received by PID 4711", "signal", -9),
        ("exited with exit code 143", "peer", 143),
    ],
)
def test_what_shells_and_schedulers_say_of_an_end_is_heard_where_nobody_else_speaks(tmp_path, line, kind, exit_code):
    alone = found(tmp_path, "up", line)
    assert (alone.failure.kind, alone.failure.exit_code, alone.failure.rank) == (kind, exit_code, None)
    explained = found(tmp_path, *of_rank(1, TRACEBACK, OOM), line)
    assert (explained.failure.kind, explained.failure.rank) == ("oom", 1)


@pytest.mark.parametrize(
    "lines",
    [
        ("exit code 0",), ("exit: 1.5 s",), ("Killed 3 stale processes",), ("exit code: 1",), ("returned 150 rows",),
        ("up", STEP_12, "exitcode: 0", "saving checkpoint", "memory (GB) | mem-allocated: 25.5"),
    ],
)  # fmt: skip
def test_a_log_without_a_failure_has_none(tmp_path, lines):
    assert found(tmp_path, *lines) is None


def test_a_step_or_rank_that_the_kernel_killed_for_memory_is_out_of_memory(tmp_path):
    event = "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0."
    first = found(tmp_path, event, "srun: error: n1: task 3: Out Of Memory")
    assert (first.failure.kind, first.verdict.oom_class) == ("oom", "host_memory")
    assert (first.failure.task, first.failure.rank, first.others) == (3, None, ())
    first = found(tmp_path, event, *of_rank(0, TRACEBACK, LOST_PEER), *summary((0, -15), root=(5, -9)))
    assert (first.failure.kind, first.failure.rank, first.verdict.oom_class) == ("oom", 5, "host_memory")


def test_a_library_that_found_no_memory_after_its_own_words_is_out_of_memory(tmp_path):
    first = found(
        tmp_path,
        *of_rank(0, TRACEBACK, FORWARD, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled",
                 "ncclUnhandledCudaError: Call to CUDA function failed.", "Last error:", "Failed to CUDA calloc async 2097152 bytes"),
    )  # fmt: skip
    assert (first.failure.kind, first.failure.phase) == ("oom", "forward_backward")
    assert (first.verdict.oom_class, first.verdict.request_bytes) == ("outside_allocator", 2097152)


ADVICE = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
)
FRAGMENTED = OOM.replace("73.48", "54.02").replace("812.44 MiB", "20.41 GiB") + ADVICE


@pytest.mark.parametrize(
    ("line", "confidence"),
    [
        ("+ export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "low"),
        ("  'PYTORCH_CUDA_ALLOC_CONF': 'garbage_collection_threshold:0.8,expandable_segments:True',", "low"),
        ("PYTORCH_ALLOC_CONF=expandable_segments:False", "high"),
        ("up", "high"),
    ],
)
def test_a_log_that_shows_expandable_segments_on_makes_fragmentation_doubtful(tmp_path, line, confidence):
    verdict = found(tmp_path, line, *of_rank(0, TRACEBACK, FRAGMENTED)).verdict
    assert (verdict.oom_class, verdict.confidence) == ("fragmentation", confidence)


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (["pretrain.py|pretrain", "training.py|setup_model_and_optimizer", "training.py|get_model"], "build_model"),
        (["training.py|setup_model_and_optimizer", "core/optimizer/__init__.py|get_megatron_optimizer"], "build_optimizer"),
        (["training.py|train_step", "core/optimizer/distrib_optimizer.py|step_with_ready_grads"], "optimizer_step"),
        (["training.py|train_step", "schedules.py|forward_backward_no_pipelining", "autograd/graph.py|backward"],
         "forward_backward"),
        (["megatron/training/initialize.py|initialize_megatron", "c10d.py|init_process_group"], "init_process_group"),
        (["training.py|setup_model_and_optimizer", "checkpointing.py|load_checkpoint",
          "core/dist_checkpointing/serialization.py|load"], "load_checkpoint"),
        (["checkpointing.py|load_checkpoint", "optimizer.py|_init_optimizer_states_with_dummy_values", "optimizers/fused_adam.py|step"],
         "load_checkpoint"),
        (["main.py|main"], None),
    ],
)  # fmt: skip
def test_the_innermost_known_frame_gives_the_phase(tmp_path, frames, phase):
    lines = ['  File "/x/{}", line 7, in {}'.format(*frame.split("|")) for frame in frames]
    assert found(tmp_path, TRACEBACK, *lines, OOM).failure.phase == phase


@pytest.mark.parametrize(
    ("name", "kind", "phase", "exit_code", "oom_class"),
    [
        ("torchrun_oom.log", "oom", "forward_backward", None, "capacity"),
        ("torchrun_kill.log", "signal", None, -9, "killed"),
        ("torchrun_error_recorded.log", "error", "forward_backward", None, "not_oom"),
    ],
)
def test_in_what_torchrun_really_prints_the_rank_that_failed_is_found(name, kind, phase, exit_code, oom_class):
    first = first_failure(log_lines([LOGS / name]))
    failure = first.failure
    assert (failure.kind, failure.rank, failure.phase, failure.exit_code) == (kind, 1, phase, exit_code)
    assert (failure.after_step, first.verdict.oom_class) == (12, oom_class)
    assert [(victim.kind, victim.rank) for victim in first.others] == [("peer", 0)]


def test_a_line_of_code_in_a_traceback_shows_nothing():
    assert sign_of("except MemoryError:", in_traceback=True) is None
    assert sign_of("raise ConnectionError", in_traceback=True) is None
    assert sign_of(f'raise torch.OutOfMemoryError("{OOM}")', in_traceback=True) is None


def test_a_failure_keeps_only_the_beginning_of_an_endless_text(tmp_path):
    first = found(tmp_path, TRACEBACK, "ValueError: " + "x" * 50_000)
    assert len(first.failure.text) == MAX_TEXT
    assert len(first.failure.evidence[0].text) == MAX_TEXT


def test_a_message_far_inside_a_log_without_line_breaks_is_kept_whole(tmp_path):
    first = found(tmp_path, "word " * 5_000 + OOM)
    assert (first.failure.text, first.verdict.confidence) == (OOM.removeprefix("torch.OutOfMemoryError: "), "high")


def test_a_failure_behind_the_report_of_a_step_is_read(first):
    assert first("step: 11 loss: 2.2", f"step: 12 loss: 2.1 {OOM}").verdict.oom_class == "capacity"
