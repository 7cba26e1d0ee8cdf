"""Lines that look like a failure, which programs print and go on after."""

import pytest

TRACEBACK = ("Traceback (most recent call last):", '  File "/job/train.py", line 7, in step')
HARMLESS = [
    "/usr/bin/ld: cannot find -laio: No such file or directory",
    "/usr/bin/ld: cannot find -lcufile: No such file or directory",
    "collect2: error: ld returned 1 exit status",
    "WARNING: Could not load library libranges.so: profiles have no ranges",
    "n1:7:9 [0] NCCL INFO Failed to bind NVLink SHARP (NVLS) Multicast memory of size 77 : CUDA error 401 'x'. Proceeding without NVLS support.",
    "[n1:77] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 77",
    "kernel: NVRM: Xid (PCI:0000:3b:00): 63, pid=7, Row Remapper: New row marked for remapping",
    "kernel: NVRM: Xid (PCI:0000:3b:00): 45, pid=7, Ch 00000007",
    "DeepEP timeout is 100 s",
    "DeepEP: set timeout for dispatch to 7 s",
    "HybridEP initialized, timeout=60",
    "best_val_loss: nan",
    "Xid monitoring is on: 79",
    "num_recv_tokens: -1.5e3",
    "removed stale shared memory segment x, No such file left",
    "watchdog thread terminated cleanly",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_a_harmless_line_is_no_failure(first, line):
    assert first("begin", line, "step 7 begins") is None


@pytest.mark.parametrize("line", HARMLESS)
def test_the_error_after_a_harmless_line_is_the_cause(first, line):
    found = first("begin", line, *TRACEBACK, "KeyError: 'tokens'")
    assert found.verdict.reason == "the program raised KeyError: 'tokens'"
