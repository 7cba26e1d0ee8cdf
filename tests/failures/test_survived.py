"""A line about an error after which the same log trains on is not why the job ended."""

import json

import pytest
from typer.testing import CliRunner

from harness.app import app
from harness.failures.failure_scan import FailureScan
from harness.failures.first_failure import failure_of
from harness.foreign.logs.lines import log_lines

HANDLED = (
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/cache/index.npy', building it",
    "node07:123:456 [3] NCCL WARN Cuda failure 'peer access is not supported between these two devices'",
    "WARNING: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB; trying a smaller batch",
    "ValueError: the tokenizer has no pad token, using 0",
)
ENDED = "[after training is done] datetime: 2026-11-20 10:05:00"


def iterations(first, last):
    return [
        f" [2026-11-20 10:00:{number % 60:02d}] iteration {number:8d}/     100 | consumed samples: {number * 8} | "
        f"elapsed time per iteration (ms): 812.3 | global batch size:     8 | lm loss: 1.0E+01 | grad norm: 1.2 |"
        for number in range(first, last + 1)
    ]


def scanned(folder, *lines):
    log = folder / "train.log"
    log.write_text("\n".join(lines) + "\n")
    scan = FailureScan()
    for line in log_lines([log]):
        scan.feed(line)
    return scan


@pytest.mark.parametrize("line", HANDLED)
@pytest.mark.parametrize("before", [0, 10])
def test_a_line_that_two_more_iterations_follow_is_no_failure(tmp_path, line, before):
    scan = scanned(tmp_path, *iterations(1, before), line, *iterations(before + 1, before + 3))
    assert failure_of(scan, None) is None
    assert line.partition(": ")[2] in scan.survived.text or scan.survived.text in line


@pytest.mark.parametrize("line", HANDLED)
def test_one_more_iteration_of_other_ranks_does_not_hide_it(tmp_path, line):
    last = iterations(11, 11)
    found = failure_of(scanned(tmp_path, *iterations(1, 10), line, *last, *last, *last), None)
    assert found.failure.after_step == 10


@pytest.mark.parametrize(
    "last",
    [
        "slurmstepd: error: *** JOB 41 ON node07 CANCELLED AT 2026-11-20T10:00:10 DUE TO PREEMPTION ***",
        "node07 kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        'Traceback (most recent call last):\n  File "/x/save.py", line 3, in save\nOSError: [Errno 5] Input/output error',
    ],
)
def test_an_announced_end_a_lost_gpu_and_a_traceback_count_all_the_same(tmp_path, last):
    found = failure_of(scanned(tmp_path, *iterations(1, 10), last, *iterations(11, 20)), None)
    assert found is not None


def test_a_job_that_starts_again_did_not_survive(tmp_path):
    again = scanned(tmp_path, *iterations(1, 10), HANDLED[0], *iterations(6, 20))
    assert failure_of(again, None).failure.after_step == 10


@pytest.mark.parametrize(("end", "exit_code"), [((), 6), ((ENDED,), 0)])
def test_the_answer_names_what_the_job_survived(tmp_path, end, exit_code):
    log = tmp_path / "train.log"
    log.write_text("\n".join([*iterations(1, 10), HANDLED[0], *iterations(11, 20), *end, ""]))
    answer = CliRunner().invoke(app, ["diagnose", str(log), "--json"])
    assert answer.exit_code == exit_code
    assert any(": FileNotFoundError" in note for note in json.loads(answer.stdout)["job"]["notes"])


HANDLED_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/opt/wandb/retry.py", line 131, in call',
    "requests.exceptions.ConnectionError: no route to the tracker",
)


@pytest.mark.parametrize(("after", "is_survived"), [(199, False), (200, True)])
def test_a_traceback_that_two_hundred_iterations_follow_was_survived(tmp_path, after, is_survived):
    end = ('Traceback (most recent call last):\n  File "/x.py", line 1, in f', "KeyError: 'the real one'")
    scan = scanned(tmp_path, *iterations(1, 10), *HANDLED_TRACEBACK, *iterations(11, 10 + after), *end)
    assert ("the real one" in failure_of(scan, None).failure.text) == is_survived
    assert (scan.survived is not None) == is_survived


@pytest.mark.parametrize(("after", "is_cause"), [(201, True), (202, False)])
def test_a_line_long_before_exit_codes_is_not_their_cause(tmp_path, after, is_cause):
    report = (
        "torch.distributed.elastic.multiprocessing.api: failed (exitcode: 1) local_rank: 3 (pid: 99) of binary: python"
    )
    found = failure_of(scanned(tmp_path, *iterations(1, 10), HANDLED[0], *iterations(11, 10 + after), report), None)
    assert ("index.npy" in found.failure.text) == is_cause


@pytest.mark.parametrize("line", ["Training epoch 0, iteration {}/99 | lr: 1e-05 | reduced_train_loss: 7.5",
                                  "[INFO|DP=0|PP=0|TP=0]: iteration: {} / 99 | lm_loss: 7.5", "step:  {}  loss:  7.5000  memory: 9.90GiB(12.5%)"])  # fmt: skip
def test_iterations_of_other_trainers_follow_an_error_that_the_job_survived(tmp_path, line):
    scan = scanned(tmp_path, line.format(1), HANDLED[3], *map(line.format, (2, 3, 4)))
    assert failure_of(scan, None) is None and scan.survived is not None
