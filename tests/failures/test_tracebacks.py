"""What a program did when it failed: from the frames of its traceback, the lines after it, and Slurm's announcements."""

import pytest

from harness.failures.allocator import judged
from harness.failures.first_failure import first_failure
from harness.failures.frames import frame_of
from harness.failures.verdict import AllocatorFigures, ProcessMemory
from harness.foreign.logs.lines import log_lines
from harness.units import GIB

TRACEBACK = "Traceback (most recent call last):"
STEP = " iteration       12/      50 | consumed samples: 1536 | lm loss: 1.17E+01 |"
STEP_1 = " iteration        1/      50 | consumed samples: 128 | lm loss: 1.17E+01 |"
IN_LOAD = '  File "/opt/megatron/training/checkpointing.py", line 118, in load_checkpoint'
IN_SAVE = '  File "/opt/megatron/training/checkpointing.py", line 77, in save_checkpoint'
IN_DATA = '  File "/opt/megatron/core/datasets/indexed_dataset.py", line 31, in __init__'
IN_TRITON = '  File "/opt/triton/compiler/compiler.py", line 12, in compile'
PREEMPTED = "slurmstepd: error: *** JOB 41 ON node07 CANCELLED AT 2026-11-20T10:00:10 DUE TO PREEMPTION ***"
REQUEUED = "slurmstepd: error: *** JOB 41 ON node07 CANCELLED AT 2026-11-20T10:00:10 DUE TO JOB REQUEUE ***"


@pytest.mark.parametrize(
    ("frame", "error", "task", "advice"),
    [
        (IN_LOAD, "KeyError: 'step'", "loaded a checkpoint", "--no-load-optim"),
        ('  File "/opt/torch/distributed/checkpoint/state_dict_loader.py", line 9, in load', "ValueError: 3", "loaded a checkpoint", "--finetune"),
        (IN_SAVE, "RuntimeError: 3 shards are left", "saved a checkpoint", "df -i"),
        ('  File "/opt/core/dist_checkpointing/strategies/disk.py", line 9, in write_preloaded_parts', "ValueError: 3", "saved a checkpoint", "df -i"),
        (IN_DATA, "IndexError: 7", "read the training data", "--data-cache-path"),
        ('  File "/opt/torch/utils/data/dataloader.py", line 1, in reraise', "TypeError: of a worker", "read the training data", "--num-workers 0"),
        (IN_TRITON, "KeyError: 'sm_200'", "compiled a kernel", "TORCHDYNAMO_DISABLE"),
        ('  File "/opt/megatron/training/arguments.py", line 5, in validate_args', "AssertionError: both are set", "checked its options", "mbr-perf check"),
    ],
)  # fmt: skip
def test_the_frames_of_an_unknown_error_say_what_the_program_did(first, frame, error, task, advice):
    verdict = first(TRACEBACK, frame, error).verdict
    assert (verdict.oom_class, verdict.confidence) == ("not_oom", "high")
    assert verdict.reason == f"the program raised {error.replace(':', f' while it {task}:', 1)}"
    assert advice in verdict.next_experiment


FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.53 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.90 GiB is "
    "free. Including non-PyTorch memory, this process has 77.20 GiB memory in use. Of the allocated memory 70.02 GiB is allocated by PyTorch, "
    "and 3.00 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("frame", "doing", "advice"),
    [
        (IN_LOAD, "loaded a checkpoint", "map_location='cpu'"),
        ('  File "/opt/megatron/training/training.py", line 1, in get_model', "built the model", "--use-distributed-optimizer"),
        ('  File "/opt/core/optimizer/__init__.py", line 1, in get_megatron_optimizer', "built the optimizer", "--use-precision"),
        ('  File "/opt/initialize.py", line 1, in initialize_megatron', "initialized the process groups", "LOCAL_RANK"),
    ],
)  # fmt: skip
def test_memory_that_runs_out_before_training_is_not_what_libraries_or_activations_hold(first, frame, doing, advice):
    verdict = first(TRACEBACK, frame, FULL).verdict
    assert (verdict.oom_class, verdict.is_in_setup, verdict.second) == ("capacity", True, None)
    assert verdict.reason.startswith(f"out of memory while the program {doing}: 70.02 GiB of 79.11 GiB (89%)")
    assert advice in verdict.next_experiment
    assert "more recompute" not in verdict.next_experiment


def test_in_a_training_step_the_same_figures_have_the_class_of_the_figures(first):
    verdict = first(TRACEBACK, '  File "/opt/schedules.py", line 1, in forward_step', FULL).verdict
    assert (verdict.oom_class, verdict.is_in_setup) == ("outside_allocator", False)


def test_the_innermost_frame_with_a_task_counts_and_a_new_traceback_begins_without():
    load, triton = frame_of(IN_LOAD), frame_of(IN_TRITON)
    assert (load.task.text, triton.task.text) == ("loaded a checkpoint", "compiled a kernel")
    assert frame_of('  File "/opt/train.py", line 1, in main').task is None
    assert frame_of("iteration 3") is None


def test_frames_of_an_earlier_traceback_do_not_explain_a_later_error(first):
    later = first(
        TRACEBACK,
        IN_LOAD,
        "SystemExit: 1",
        "[rank1]: " + TRACEBACK,
        '[rank1]:   File "/x.py", line 1, in f',
        "[rank1]: KeyError: 3",
    )
    assert "while it" not in later.verdict.reason
    both = first(TRACEBACK, IN_LOAD, "warnings.warn(", TRACEBACK, '  File "/x.py", line 1, in f', "KeyError: 3")
    assert "while it" not in both.verdict.reason


def test_a_log_that_ends_inside_a_traceback_is_unknown_and_the_job_failed(first):
    found = first(STEP, TRACEBACK, IN_SAVE, "    torch.save(state, path)")
    assert (found.verdict.oom_class, found.verdict.confidence) == ("unknown", "low")
    assert found.verdict.reason == "the log ends inside a traceback, before the line that names the error"
    assert "The program saved a checkpoint then." in found.verdict.next_experiment
    assert (found.failure.after_step, found.failure.evidence[0].text, found.failure.is_cut) == (
        12,
        IN_SAVE.strip(),
        True,
    )


@pytest.mark.parametrize("end", ["SystemExit: 0", "KeyboardInterrupt", "subprocess.CalledProcessError: Command 'true'"])
def test_a_traceback_that_ends_with_no_error_of_its_own_is_not_cut(first, end):
    found = first(TRACEBACK, IN_SAVE, end)
    assert found is None or not found.failure.is_cut


def test_a_traceback_before_further_iterations_is_not_cut(first):
    assert first(TRACEBACK, IN_SAVE, STEP_1, STEP) is None


def test_a_cut_traceback_of_another_file_is_found_too(tmp_path):
    (tmp_path / "a.log").write_text(f"{TRACEBACK}\n{IN_LOAD}\n")
    (tmp_path / "b.log").write_text(f"{STEP_1}\n{STEP}\n")
    found = first_failure(log_lines([tmp_path / "a.log", tmp_path / "b.log"]))
    assert found.failure.where == f"{tmp_path}/a.log:2"


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("Bootstrap : no socket interface found", "no usable address"),
        ("ncclSocketInit: connecting to address  with family 7 is neither AF_INET(2) nor AF_INET6(10)", "no usable address"),
        ("Call to ibv_modify_qp failed with error Connection timed out", "the network between nodes failed"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "two processes of the launch use the same GPU"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_whole", [True, False])
def test_nccl_names_the_cause_in_the_lines_after_its_error(first, last, reason, is_whole):
    head = "torch.distributed.DistBackendError: NCCL error in: /x/ProcessGroupNCCL.cpp:77, internal error, NCCL version 2.27.3"
    start = [TRACEBACK, IN_LOAD, head] if is_whole else []
    found = first(
        *(
            f"[rank2]: {line}"
            for line in (*start, "ncclInternalError: Internal check failed.", "Last error:", last, "bye")
        )
    )
    assert found.verdict.reason.startswith(reason) or reason in found.verdict.reason
    assert (found.failure.rank, found.also) == (2, ())
    assert "bye" not in found.failure.text


def test_a_line_after_an_error_of_nccl_that_is_no_part_of_it_is_read_for_itself(first):
    head = "torch.distributed.DistBackendError: NCCL error in: /x/ProcessGroupNCCL.cpp:77, internal error, NCCL version 2.27.3"
    found = first(
        TRACEBACK, IN_LOAD, head, "node07 kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    )
    assert [victim.text for victim in found.victims] == [head]
    assert found.verdict.reason == "a GPU failed or was lost"


def test_errors_after_slurm_ended_the_job_are_consequences(first):
    found = first(STEP, PREEMPTED, TRACEBACK, IN_SAVE, "RuntimeError: store is gone")
    assert (found.verdict.reason, found.victims) == ("Slurm preempted the job", ())


def test_an_error_before_slurm_ended_the_job_is_the_cause(first):
    assert "KeyError" in first(STEP, TRACEBACK, IN_SAVE, "KeyError: 3", PREEMPTED).verdict.reason


def test_after_a_restart_errors_count_again(first):
    found = first(STEP_1, STEP, PREEMPTED, STEP_1, TRACEBACK, IN_SAVE, "KeyError: 3")
    assert "KeyError" in found.verdict.reason


def test_a_requeued_job_starts_again_and_its_errors_may_be_of_the_next_attempt(first):
    assert first(STEP, REQUEUED).verdict.reason == "Slurm put the job back into its queue"
    assert "KeyError" in first(STEP, REQUEUED, TRACEBACK, IN_SAVE, "KeyError: 3").verdict.reason


def test_the_first_of_two_watchdogs_is_found_by_torchs_own_times(first):
    late = "[rank7]:[E821 14:09:00.1 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 7] ProcessGroupNCCL's watchdog got stuck for 480 seconds"
    early = "[rank2]:[E821 14:01:00.1 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
    assert first(late, early).failure.rank == 2
    assert first(late.replace("E821", "E1021"), early.replace("E821", "E922")).failure.rank == 2


def test_other_processes_on_a_device_that_is_full_by_itself_are_the_first_of_two_causes():
    figures = {"total_bytes": 80 * GIB, "free_bytes": 0, "tried_bytes": GIB, "this_process_bytes": 75 * GIB,
               "processes": (ProcessMemory(7, 5 * GIB),), "unallocated_bytes": 0}  # fmt: skip
    full = judged(AllocatorFigures(allocated_bytes=64 * GIB, **figures), expandable_segments=None)
    roomy = judged(AllocatorFigures(allocated_bytes=63 * GIB, **figures), expandable_segments=None)
    assert (full.oom_class, full.second, roomy.oom_class, roomy.second) == (
        "other_process",
        "capacity",
        "other_process",
        None,
    )
    assert "(80%) are live tensors" in full.reason


def test_an_endless_error_keeps_its_first_letter(first):
    found = first(TRACEBACK, IN_LOAD, f"KeyError: '{'x' * 20_000}'")
    assert found.failure.text.startswith("KeyError: 'xxx")


def test_the_error_of_a_worker_counts_and_not_that_torch_raises_it_again(first):
    again = "TypeError: Caught TypeError in DataLoader worker process 7."
    original = ("Original Traceback (most recent call last):", '  File "/job/data.py", line 7, in __getitem__')
    worker = '  File "/opt/torch/utils/data/dataloader.py", line 1, in reraise'
    verdict = first(TRACEBACK, worker, again, *original, "TypeError: seven is no text").verdict
    assert verdict.reason.endswith(": seven is no text")
    assert first(
        TRACEBACK, worker, again, *original, "OSError: [Errno 24] Too many open files"
    ).verdict.reason.startswith("the process had too many")
    assert again.partition(": ")[2] in first(TRACEBACK, worker, again).verdict.reason


@pytest.mark.parametrize(
    "frames", [(), (TRACEBACK, '  File "/opt/python/multiprocessing/pool.py", line 7, in __del__')]
)
@pytest.mark.parametrize("error", ["RuntimeError: can't create new thread at shutdown", "StopIteration"])
def test_an_error_that_python_ignored_is_no_failure_and_the_next_is(first, frames, error):
    ignored = ("Exception ignored in: <function Pool.__del__ at 0x7f>", *frames, error)
    assert first("begin", *ignored) is None
    assert first(*ignored, TRACEBACK, IN_LOAD, "KeyError: 'a'").verdict.reason.startswith("the program raised KeyError")


def test_torchruns_table_without_an_exit_code_is_a_failure_of_its_rank(first):
    lines = ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "Root Cause (first observed failure):", "[0]:",
             "  time      : 2026-01-02_03:04:05", "  host      : n1", "  rank      : 7 (local_rank: 7)")  # fmt: skip
    found = first("begin", *lines)
    assert (found.failure.rank, found.verdict.oom_class) == (7, "unknown")
    assert found.verdict.reason.startswith("torchrun reports that a process failed")
    assert first(*lines, *(f" iteration {n:8d}/       9 | lm loss: 7.0E+00 |" for n in (1, 2))) is None
    assert "exit code 1" in first(*lines, "  exitcode  : 1 (pid: 77)").verdict.reason


def test_an_error_without_the_word_error_is_quoted(first):
    found = first(
        "Traceback (most recent call last):", '  File "/job/a.py", line 7, in read', "mylib.io.BadShard: seven rows"
    )
    assert found.verdict.reason == "the program raised BadShard: seven rows"


def test_a_plain_exception_is_quoted(first):
    found = first(TRACEBACK, '  File "/job/a.py", line 7, in read', "Exception: seven rows")
    assert found.verdict.reason == "the program raised Exception: seven rows"


def test_lightning_restores_a_checkpoint(first):
    frame = '  File "/opt/lightning/trainer/connectors/checkpoint_connector.py", line 7, in restore_optimizers'
    found = first("Traceback (most recent call last):", frame, "KeyError: 'a'")
    assert (found.failure.phase, found.verdict.reason) == (
        "load_checkpoint",
        "the program raised KeyError while it loaded a checkpoint: 'a'",
    )
