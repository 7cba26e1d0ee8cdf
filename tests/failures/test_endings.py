"""How a job ended where no text says why: signals, launchers' reports, and lines that only mention an error."""

import pytest

from harness.failures.classify import Ending, classify

TRACEBACK = "Traceback (most recent call last):"
FRAME = '  File "/job/train.py", line 7, in main'
LOST_GPU = "node07 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("exit_code", "oom_class", "entry"),
    [
        (-11, "not_oom", "sigsegv"), (139, "not_oom", "sigsegv"), (-7, "not_oom", "sigbus"), (-4, "not_oom", "sigill_sigfpe"),
        (-8, "not_oom", "sigill_sigfpe"), (-6, "not_oom", "sigabrt"), (-15, "not_oom", "sigterm"), (-2, "not_oom", "sigint"),
        (-1, "not_oom", "sighup"), (-9, "killed", ""), (-10, "unknown", ""), (1, "unknown", ""), (300, "unknown", ""),
    ],
)  # fmt: skip
def test_a_signal_is_recognised_by_its_number(exit_code, oom_class, entry):
    verdict = classify("failed", Ending(exit_code=exit_code))
    assert (verdict.oom_class, verdict.entry) == (oom_class, entry)


TABLE = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "=" * 60, "pretrain.py FAILED", "-" * 60,
    "Failures:", "  <NO_OTHER_FAILURES>", "-" * 60, "Root Cause (first observed failure):", "[0]:",
    "  time      : 2026-08-21_14:03:30", "  host      : node07", "  rank      : 6 (local_rank: 6)",
    "  exitcode  : 1 (pid: 906)", "  error_file: <N/A>",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html", "=" * 60,
)  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "who", "rank"),
    [
        (TABLE, "rank 6 on node07", 6),
        (("E0821 14:03:30.0 77 torch/distributed/elastic/api.py:882] failed (exitcode: 1) local_rank: 3 (pid: 5) of x",),
         "local rank 3", None),
        (("subprocess.CalledProcessError: Command '['python', 'pretrain.py']' returned non-zero exit status 1.",),
         "process", None),
        (("srun: error: node07: task 3: Exited with exit code 1",), "task 3", None),
    ],
)  # fmt: skip
def test_the_report_of_a_launcher_alone_names_the_log_with_the_reason(first, lines, who, rank):
    """An exit code of 1 says nothing about the cause, so no cause is claimed."""
    found = first(*lines)
    assert (found.verdict.oom_class, found.verdict.confidence, found.failure.rank) == ("unknown", "low", rank)
    assert who in found.verdict.reason


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
def test_a_parent_that_reports_a_signal_reports_how_its_child_ended(first, name):
    exit_code = {"SIGKILL": -9, "SIGSEGV": -11, "SIGTERM": -15}[name]
    for line in (
        f"subprocess.CalledProcessError: Command '['python', 'x.py']' died with <Signals.{name}: {-exit_code}>.",
        f"torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal {name}",
    ):
        found = first(TRACEBACK, FRAME, line)
        assert found.failure.exit_code == exit_code
        assert found.verdict.oom_class == ("killed" if name == "SIGKILL" else "not_oom")


def test_the_report_of_a_launcher_beside_the_error_of_its_rank_hides_nothing(first):
    found = first(f"[rank6]: {TRACEBACK}", "[rank6]: KeyError: 'lm_loss'", *TABLE)
    assert (found.verdict.oom_class, found.verdict.confidence, found.failure.rank) == ("not_oom", "high", 6)


def test_a_lost_gpu_explains_the_errors_of_the_ranks(first):
    found = first(f"[rank0]: {TRACEBACK}", "[rank0]: RuntimeError: NCCL communicator was aborted on rank 0.", LOST_GPU)
    assert found.verdict.entry == "gpu_lost"
    assert [victim.rank for victim in found.others] == [0]


NAN_IN_GRADIENTS = (
    "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #12 invocation #1 "
    "(message='found NaN in local grad norm for bucket #0 in backward pass')"
)
NAN_IN_LOSS = (
    "[rank0]: RuntimeError: Rank 3, node n1, device 3, iteration 12: Unexpected result nan "
    "(message='found NaN in local forward loss calculation')"
)


@pytest.mark.parametrize(("line", "rank"), [(NAN_IN_GRADIENTS, 3), (NAN_IN_LOSS, 0), (NAN_IN_LOSS[9:], 3)])
def test_a_result_that_is_not_finite_is_reported_with_its_rank(first, line, rank):
    found = first(line, "[rank5]: RuntimeError: Connection closed by peer [10.0.0.2]:30711")
    assert (found.verdict.entry, found.failure.rank) == ("non_finite", rank)
    assert [victim.rank for victim in found.others] == [5]


@pytest.mark.parametrize(
    ("line", "is_nan"),
    [
        ("iter 70: loss nan, time 9.07ms", True),
        ("step:  7  loss:  nan  grad_norm:  nan", True),
        ("12%|#| 7/99 [01:01<01:01, 1.05s/it, loss=nan, v_num=, reduced_train_loss=nan]", True),
        ("12%|#| 7/99 [01:01<01:01, 1.05s/it, loss=nan, v_num=, reduced_train_loss=1.2]", False),
        ("INFO best_loss: nan", False),
        ("WARNING: loss: nan, skipping the batch", False),
        ("steps with a loss nan or above 9: 0", False),
    ],
)
def test_a_loss_that_any_trainer_logs_as_nan_is_found(first, line, is_nan):
    found = first("begin", line)
    assert (found is not None and found.verdict.entry == "loss_is_nan") is is_nan


def test_a_large_result_and_the_code_of_the_check_are_no_nan(first):
    assert first("Unexpected result 9.3 on rank 3 at iteration #12 (message='Spiky loss')") is None
    code = '    message=f"found NaN in local grad norm for bucket #{i} "'
    assert first(TRACEBACK, FRAME, code, "KeyError: 'lm_loss'").failure.text == "KeyError: 'lm_loss'"


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: pyxis: failed to import docker image",
        "run.sh: line 7: torchrun: command not found",
        "/usr/bin/ld: cannot find -lcuda: No such file or directory",
        "/x/flash_attn_3_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        "wandb: ERROR api_key not configured",
        "*** An error occurred in MPI_Init_thread",
    ],
)
@pytest.mark.parametrize("report", [(), ("failed (exitcode: 1) local_rank: 0 (pid: 8) of binary: /usr/bin/python",)])
def test_the_first_line_that_mentions_an_error_is_quoted_where_no_line_says_more(first, line, report):
    found = first("begin", line, *report)
    assert (found.verdict.oom_class, found.verdict.confidence, found.failure.is_mention) == ("not_oom", "low", True)
    assert line[:40] in found.verdict.reason
    assert first("begin", line, f"[rank1]: {TRACEBACK}", "[rank1]: KeyError: 'a'", *report).failure.rank == 1


@pytest.mark.parametrize(
    "line", ["[W821 socket.cpp:9] could not connect", "INFO retry after error", "UserWarning: x failed", "all well"]
)
def test_what_programs_print_and_go_on_is_no_failure(first, line):
    assert first("begin", line) is None
