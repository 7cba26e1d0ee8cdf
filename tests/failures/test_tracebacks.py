"""What a program did when it failed: from the frames of its traceback, the lines after it, and Slurm's announcements."""

import pytest

TRACEBACK = "Traceback (most recent call last):"
STEP = " iteration       12/      50 | consumed samples: 1536 | lm loss: 1.17E+01 |"
STEP_1 = " iteration        1/      50 | consumed samples: 128 | lm loss: 1.17E+01 |"
IN_LOAD = '  File "/opt/megatron/training/checkpointing.py", line 118, in load_checkpoint'
IN_SAVE = '  File "/opt/megatron/training/checkpointing.py", line 77, in save_checkpoint'
PREEMPTED = "slurmstepd: error: *** JOB 41 ON node07 CANCELLED AT 2026-11-20T10:00:10 DUE TO PREEMPTION ***"
REQUEUED = "slurmstepd: error: *** JOB 41 ON node07 CANCELLED AT 2026-11-20T10:00:10 DUE TO JOB REQUEUE ***"


FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.53 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.90 GiB is "
    "free. Including non-PyTorch memory, this process has 77.20 GiB memory in use. Of the allocated memory 70.02 GiB is allocated by PyTorch, "
    "and 3.00 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    "frame",
    [
        IN_LOAD,
        '  File "/opt/megatron/training/training.py", line 1, in get_model',
        '  File "/opt/core/optimizer/__init__.py", line 1, in get_megatron_optimizer',
        '  File "/opt/initialize.py", line 1, in initialize_megatron',
    ],
)
def test_memory_that_runs_out_before_training_is_not_what_libraries_or_activations_hold(first, frame):
    verdict = first(TRACEBACK, frame, FULL).verdict
    assert (verdict.oom_class, verdict.confidence, verdict.recompute_helps) == ("capacity", "high", False)
    assert "more recompute" not in verdict.next_experiment


def test_memory_of_the_host_that_cannot_be_pinned_is_no_memory_of_the_gpu(first):
    pins = '  File "/opt/torch/utils/data/_utils/pin_memory.py", line 98, in pin_memory'
    for error in ("CUDA error: out of memory", "CUDA error: invalid argument"):
        assert first(TRACEBACK, pins, f"RuntimeError: {error}").verdict.oom_class == "host_memory"
        assert first(TRACEBACK, IN_LOAD, f"RuntimeError: {error}").verdict.oom_class != "host_memory"


def test_a_log_that_ends_inside_a_traceback_is_unknown_and_the_job_failed(first):
    found = first(STEP, TRACEBACK, IN_SAVE, "    torch.save(state, path)")
    assert (found.verdict.oom_class, found.verdict.confidence) == ("unknown", "low")
    assert (found.failure.after_step, found.failure.evidence[0].text, found.failure.is_cut) == (
        12,
        IN_SAVE.strip(),
        True,
    )


@pytest.mark.parametrize("end", ["SystemExit: 0", "KeyboardInterrupt", "subprocess.CalledProcessError: Command 'true'"])
def test_a_traceback_that_ends_with_no_error_of_its_own_is_not_cut(first, end):
    found = first(TRACEBACK, IN_SAVE, end)
    assert found is None or not found.failure.is_cut


@pytest.mark.parametrize(
    ("last", "entry"),
    [
        ("Bootstrap : no socket interface found", "nccl_interface"),
        ("ncclSocketInit: connecting to address  with family 7 is neither AF_INET(2) nor AF_INET6(10)", "nccl_interface"),
        ("Call to ibv_modify_qp failed with error Connection timed out", "network"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "one_gpu_twice"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_whole", [True, False])
def test_nccl_names_the_cause_in_the_lines_after_its_error(first, last, entry, is_whole):
    head = "torch.distributed.DistBackendError: NCCL error in: /x/ProcessGroupNCCL.cpp:77, internal error, NCCL version 2.27.3"
    start = [TRACEBACK, IN_LOAD, head] if is_whole else []
    found = first(
        *(
            f"[rank2]: {line}"
            for line in (*start, "ncclInternalError: Internal check failed.", "Last error:", last, "bye")
        )
    )
    assert found.verdict.entry == entry
    assert (found.failure.rank, found.others) == (2, ())
    assert "bye" not in found.failure.text


def test_a_line_after_an_error_of_nccl_that_is_no_part_of_it_is_read_for_itself(first):
    head = "torch.distributed.DistBackendError: NCCL error in: /x/ProcessGroupNCCL.cpp:77, internal error, NCCL version 2.27.3"
    found = first(
        TRACEBACK, IN_LOAD, head, "node07 kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    )
    assert [victim.text for victim in found.others] == [head]
    assert found.verdict.entry == "gpu_lost"


def test_errors_after_slurm_ended_the_job_are_consequences_and_one_before_it_is_the_cause(first):
    found = first(STEP, PREEMPTED, TRACEBACK, IN_SAVE, "RuntimeError: store is gone")
    assert (found.verdict.entry, found.others) == ("slurm_preempted", ())
    assert "KeyError" in first(STEP, TRACEBACK, IN_SAVE, "KeyError: 3", PREEMPTED).verdict.reason


def test_after_a_restart_or_in_a_requeued_job_errors_count_again(first):
    again = (TRACEBACK, IN_SAVE, "KeyError: 3")
    assert "KeyError" in first(STEP_1, STEP, PREEMPTED, STEP_1, *again).verdict.reason
    assert first(STEP, REQUEUED).verdict.entry == "slurm_requeued"
    assert "KeyError" in first(STEP, REQUEUED, *again).verdict.reason


@pytest.mark.parametrize(
    "frames", [(), (TRACEBACK, '  File "/opt/python/multiprocessing/pool.py", line 7, in __del__')]
)
@pytest.mark.parametrize("error", ["RuntimeError: can't create new thread at shutdown", "StopIteration"])
def test_an_error_that_python_ignored_is_no_failure_and_the_next_is(first, frames, error):
    ignored = ("Exception ignored in: <function Pool.__del__ at 0x7f>", *frames, error)
    assert first("begin", *ignored) is None
    assert first(*ignored, TRACEBACK, IN_LOAD, "KeyError: 'a'").failure.text == "KeyError: 'a'"


@pytest.mark.parametrize("error", ["mylib.io.BadShard: seven rows", "Exception: seven rows", "KeyError: 'seven'"])
def test_an_error_that_no_entry_knows_is_quoted_and_is_not_memory(first, error):
    found = first(TRACEBACK, '  File "/job/a.py", line 7, in read', error)
    assert (found.verdict.oom_class, found.verdict.confidence, found.verdict.entry) == ("not_oom", "high", "")
    assert error in found.verdict.reason


def test_a_quoted_error_is_short_and_has_no_secrets(first):
    reason = first(TRACEBACK, IN_LOAD, f"ValueError: HF_TOKEN=hf_{'a' * 34} {'x' * 400}").verdict.reason
    assert "hf_aaa" not in reason and len(reason) < 220
