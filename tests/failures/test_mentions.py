"""Causes that a line only mentions: pasted excerpts, other loggers, and errors that are no evidence of a cause by themselves."""

import pytest

from harness.failures.classify import classify
from harness.failures.first_failure import first_failure
from harness.foreign.logs.lines import LogLine

TRACEBACK = ("Traceback (most recent call last):", '  File "/job/train.py", line 7, in main')
PIN = '  File "/opt/torch/cuda_accelerator.py", line 7, in pin_memory'
TABLE = (
    "failed (exitcode: 1) local_rank: 0 (pid: 8) of binary: /usr/bin/python",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("It ends with what(): NCCL Error 1: unhandled cuda error", "a call of CUDA failed inside NCCL"),
        ("job.core: gemm.cu:7 in function gemm: cuBLAS Error: an unsupported value or parameter", "cuBLAS has no kernel"),
        ("size mismatch for layers.1.bias: copying a param with shape torch.Size([8])", "the checkpoint does not fit"),
        ("2026-01-02 03:04:05 ERROR job failed: RuntimeError: seven shards are left", "the program reported RuntimeError: seven shards are left"),
        ("run.sh: line 7: torchrun: command not found", "a command of the launch is not installed"),
        ("EXCEPTION occurred: CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=1", "cuBLAS failed"),
        ("import failed with exception libcudnn_adv.so.9: cannot open shared object file", "a shared library is missing"),
        ("src/gemm.cu:7:2: fatal error: cuda.h: No such file or directory", "a kernel or an extension could not be compiled"),
        ("we always run into CUDA out of memory here", "the text reports out of memory without figures"),
        ("{'loss': nan, 'epoch': 0.25}", "the loss is not a number"),
        ("step:  7  loss:  nan  grad_norm:  nan", "the loss is not a number"),
        ("iter 70: loss nan, time 9.07ms", "the loss is not a number"),
        ("{'grad_norm': nan, 'epoch': 0.25}", "a gradient norm is not a number"),
        ("01/02 03:04:05 - trainer - INFO - Epoch(train) [1][70/90]  loss: 7.25  grad_norm: nan", "a gradient norm is not a number"),
        ("Epoch 0:   7%|7| 7/99 [01:01<01:01, 1.05s/it, loss=nan, v_num=, reduced_train_loss=nan]", "the loss is not a number"),
    ],
)  # fmt: skip
def test_a_line_that_only_mentions_a_cause_is_the_answer_where_there_is_no_other(first, line, reason):
    for lines in ((line,), (line, *TABLE)):
        verdict = first("begin", *lines).verdict
        assert verdict.reason.startswith(reason)
        assert verdict.confidence == ("medium" if "not a number" in reason else "low")


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: No module named 'apex': the slow path is taken",
        "n1:7:9 [1] NCCL INFO Failed to open libibverbs.so[.1]: cannot open shared object file",
        "/opt/x.py:7: UserWarning: the tokenizer file was not found",
        "[W socket.cpp:9] [c10d] The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",
        'raise ValueError("%s: not divisible by" % name)',
        "finance data was read, and all is well",
        "steps with a loss nan or above 9: 0",
        "WARNING: loss: nan, skipping the batch",
        "Epoch 0:   7%|7| 7/99 [01:01<01:01, 1.05s/it, loss=nan, v_num=, reduced_train_loss=7.250]",
        "Read https://huggingface.co/docs about what is supported and what cannot be done",
    ],
)
def test_what_programs_print_and_go_on_is_no_mention(first, line):
    assert first("begin", line) is None


def test_a_mention_is_weaker_than_any_failure_and_than_a_later_traceback(first):
    mention = "job.core: RuntimeError: seven shards are left"
    assert first(mention, *TRACEBACK, "KeyError: 'a'").verdict.reason == "the program raised KeyError: 'a'"
    assert first(mention, "Fatal Python error: Segmentation fault").verdict.reason.startswith("native code crashed")
    assert first(mention, *TRACEBACK).failure.is_cut
    assert first(*TRACEBACK, mention).verdict.reason.startswith("the program reported RuntimeError")


def test_what_is_mentioned_before_a_cut_traceback_may_be_its_cause(first):
    verdict = first("nslookup: can't resolve 'job-0': Name does not resolve", *TRACEBACK).verdict
    assert verdict.oom_class == "unknown"
    assert "(" in verdict.reason and verdict.reason.endswith(
        "may show the cause: the name of a node or server could not be resolved"
    )
    assert "getent hosts" in verdict.next_experiment


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n1:7:9 [5] NCCL INFO [Service thread] Connection closed by localRank 7", "Local rank: 7"),
        ("RuntimeError: CUDA driver error: invalid argument", "old drivers report a full GPU this way"),
    ],
)
def test_a_line_that_leaves_its_cause_open_is_unknown(first, line, reason):
    verdict = first("begin", line).verdict
    assert (verdict.oom_class, verdict.confidence) == ("unknown", "low")
    assert reason in verdict.reason


def test_triton_prints_its_cause_below_its_error(first):
    lines = (
        "CompilationError: at 7:0:",
        "def kernel(x):",
        "^",
        'ValueError("type fp8e4nv not supported in this architecture.")',
    )
    assert "does not have the FP8 format" in first(*TRACEBACK, *lines).verdict.reason
    assert (
        "could not compile a kernel: ValueError('seven')"
        in first(*TRACEBACK, *lines[:-1], "ValueError('seven')").verdict.reason
    )


def test_a_step_that_slurm_ended_for_a_task_names_no_cause(first):
    line = "[2026-01-02T03:04:05] error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TASK FAILURE ***"
    verdict = first(line, "srun: error: n1: tasks 0-5,7: Terminated").verdict
    assert (verdict.oom_class, verdict.confidence) == ("unknown", "low")
    assert "because a task of it failed" in verdict.reason
    assert first(line, *TRACEBACK, "KeyError: 'a'").verdict.reason == "the program raised KeyError: 'a'"


def test_the_error_of_an_import_is_on_the_line_below(first):
    failed = (
        "RuntimeError: Failed to import models.seven because of the following error (look up to see its traceback):"
    )
    missing = "/lib/libc.so.6: version `GLIBC_2.99' not found (required by /x/flash_attn_2_cuda.so)"
    assert first(*TRACEBACK, failed, missing).verdict.reason.startswith("two libraries do not fit together")
    assert first(*TRACEBACK, failed, "seven").verdict.reason.startswith("a module or a class lacks")


@pytest.mark.parametrize(
    ("text", "oom_class"),
    [
        ("ValueError: No available memory for the cache blocks. Try increasing it.", "self_imposed_limit"),
        ("ValueError: Free memory on device (7.1/80.0 GiB) on startup is less than desired GPU memory utilization (0.9)", "other_process"),
        ("RuntimeError: unable to write to file </torch_77_1>: No space left on device (28)", "host_memory"),
    ],
)  # fmt: skip
def test_memory_that_a_server_or_a_loader_lacks(text, oom_class):
    verdict = classify(text)
    assert verdict.oom_class == oom_class
    assert verdict.advice


ABORTED = (
    "  time      : 2026-01-02_03:04:05",
    "  host      : n1",
    "  rank      : 3 (local_rank: 3)",
    "  exitcode  : -6 (pid: 7)",
    "  traceback : Signal 6 (SIGABRT) received by PID 7",
)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("CUDA error: the launch timed out and was terminated", "a call of CUDA failed: the launch timed out"),
        ("seven is no pointer INTERNAL ASSERT FAILED at x.h:7", "a check inside torch"),
        (
            "seven is no pointer",
            "native code threw an exception that nothing caught, and the process aborted: seven is no pointer",
        ),
    ],
)
def test_a_process_that_aborts_says_why_before_its_signal(first, what, reason):
    lines = ("terminate called after throwing an instance of 'c10::Error'", f"  what():  {what}")
    for more in ((), ABORTED, ("7: line 7: 4711 Aborted                 (core dumped) python",)):
        assert first(*lines, *more).verdict.reason.startswith(reason)
    assert first(*ABORTED).verdict.reason == "native code aborted (SIGABRT)"


def test_a_size_that_native_code_checks_is_a_size():
    text = "RuntimeError: batches % per_block == 0INTERNAL ASSERT FAILED at x.h:7"
    assert "does not divide evenly" in classify(text).reason


def test_a_job_that_trains_on_survived_what_a_line_mentions(first):
    iteration = " iteration        {}/      50 | consumed samples: 32 | lm loss: 1.1E+01 |"
    assert first("job.core: RuntimeError: seven shards", iteration.format(1)) is None
    assert first(iteration.format(1), "job.core: RuntimeError: seven shards") is not None


@pytest.mark.parametrize("mentions_first", [True, False])
def test_iterations_of_another_log_do_not_take_a_mention_back(mentions_first):
    mention = LogLine("job.core: RuntimeError: seven shards", "rank_0.log", 1)
    iteration = LogLine(" iteration        1/      50 | lm loss: 1.1E+01 |", "rank_7.log", 1)
    found = first_failure([mention, iteration] if mentions_first else [iteration, mention])
    assert found.failure.text == "RuntimeError: seven shards"


@pytest.mark.parametrize(
    ("error", "oom_class"),
    [
        ("RuntimeError: CUDA error: out of memory", "host_memory"),
        ("RuntimeError: CUDA error: invalid argument", "host_memory"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "not_oom"),
    ],
)
def test_memory_of_the_host_that_cannot_be_pinned_is_no_memory_of_the_gpu(first, error, oom_class):
    verdict = first(*TRACEBACK, PIN, error).verdict
    assert verdict.oom_class == oom_class
    assert ("ulimit -l" in verdict.next_experiment) == (oom_class == "host_memory")


def test_an_unknown_error_of_cuda_is_quoted_and_no_certain_cause():
    verdict = classify("RuntimeError: CUDA error: invalid argument CUDA kernel errors might be reported later")
    assert (verdict.reason, verdict.confidence) == ("a call of CUDA failed: invalid argument", "medium")


def test_cublas_that_could_not_start_may_have_found_no_memory():
    verdict = classify("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
    assert (verdict.oom_class, verdict.confidence) == ("unknown", "low")
    assert "Most often the GPU's memory is full" in verdict.reason


def test_a_step_that_was_cancelled_does_not_say_by_whom(first):
    line = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***"
    verdict = first(line).verdict
    assert (verdict.oom_class, verdict.confidence) == ("unknown", "low")
    assert "scancel" in verdict.reason
    assert "a launcher reports only" in first(*TABLE, line).verdict.reason


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: see https://huggingface.co/docs for the formats that exist",
        "ValueError: Tokenizer class SevenTokenizer does not exist or is not currently imported.",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
)
def test_a_word_of_a_message_is_no_cause(text):
    reason = classify(text).reason
    assert not any(claim in reason for claim in ("could not be read", "another rank", "file of the tokenizer"))


@pytest.mark.parametrize(
    ("text", "is_broken"),
    [
        ("ValueError: bad number of requests.", False),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool", True),
        ("urllib3.exceptions.ReadTimeoutError: read timed out", True),
    ],
)
def test_only_errors_of_a_library_for_http_are_a_broken_connection(text, is_broken):
    assert ("a connection to another process or a service broke" in classify(text).reason) == is_broken


def test_a_quoted_message_is_short_and_has_no_secrets(first):
    verdict = first(*TRACEBACK, f"ValueError: token=hf_{'a' * 34} {'x' * 900}").verdict
    assert "hf_aaaa" not in verdict.reason
    assert len(verdict.reason) < 250


@pytest.mark.parametrize(
    "line",
    [
        "ERROR 01-02 03:04:05 [executor.py:7] Worker proc VllmWorker-7 died unexpectedly, shutting down executor.",
        "CRITICAL 01-02 03:04:05 launcher.py:7] MQLLMEngine is already dead, terminating server process",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue",
    ],
)
def test_a_report_of_vllm_that_its_engine_died_is_no_cause(first, line):
    verdict = first("begin", line).verdict
    assert (verdict.oom_class, verdict.reason[:17]) == ("unknown", "vLLM reports only")
    assert first("begin", *TRACEBACK, "ValueError: seven", line).verdict.reason.startswith(
        "the program raised ValueError"
    )
