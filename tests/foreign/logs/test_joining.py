"""Logs that were broken anywhere: whole lines again, with label and rank; and lines that were not broken stay as they are."""

import io
import random
import textwrap

import pytest

from harness.failures.first_failure import first_failure
from harness.foreign.logs.lines import lines_of
from harness.foreign.logs.seams import glue
from harness.foreign.logs.sources import LogSource
from harness.foreign.reader import LogReader
from tests.failures.test_classify import REALISTIC, VARIANTS
from tests.failures.test_nccl import BACKEND, COMPLETION, DUPLICATE, MODIFY_QP, SYSTEM, status, timed_out
from tests.imports.logs import bridge_log, megatron_lm_log, memory_gb, memory_mb

BRIDGE = bridge_log(
    [700.0, 701.5, 699.0, 702.0], [11.5, 11.4, 11.25, 11.123456],
    [(1, memory_gb(0, 1, allocated=25.512, max_allocated=58.803, max_reserved=62.113)),
     (2, memory_gb(3, 2, allocated=25.5, max_allocated=58.8, max_reserved=62.1))],
)  # fmt: skip
MEGATRON = megatron_lm_log(
    [8.9204, 0.9123, 0.95], [744.1, 800.0, 812.25], [(2, memory_mb(3, 2, 24330.19, 56079.48, 59235.0, 59236.0))]
)
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/opt/megatron/core/pipeline_parallel/schedules.py", line 402, in forward_step\n    output = model(x)\n'
)
TABLE = "Root Cause (first observed failure):\n[0]:\n  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 906)\n"
LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-21T16:00:00 DUE TO TIME LIMIT ***"
NAN = "Unexpected result nan on rank 3 at iteration #12 invocation #1 (message='found NaN in local grad norm for bucket #0')"
# As older releases write them: floats of all digits; and a loss that is printed although it is NaN.
RAW = (
    MEGATRON.replace("24330.19", "24330.1904296875")
    .replace("56079.48", "56079.48193359375")
    .replace("59235.00", "59235.0")
)
PRINTED_NAN = MEGATRON.replace("9.500000E-01", "NAN").replace("throughput", "z_loss: 4.312000E-01 | throughput")
ENDS = {
    "a call of ibverbs": "Call to ibv_modify_qp failed with error Connection timed out",
    "oom_kill": "slurmstepd: error: Detected 1 oom_kill event in StepId=8812.0. Some of the step tasks have been OOM Killed.",
    "a task that crashed": "srun: error: gpu-b12: task 3: Segmentation fault (core dumped)",
    "a loader": "RuntimeError: DataLoader worker (pid 7712) is killed by signal: Killed. ",
    "a lost GPU": "[Mon Sep 14 22:31:40 2026] NVRM: Xid (PCI:0000:5a:00): 79, pid=88121, name=python, GPU has fallen off the bus.",
    "NCCL's buffers": "n7:4412:4590 [2] include/alloc.h:246 NCCL WARN Cuda failure 2 'out of memory'",
    "a kernel": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "a module": "ModuleNotFoundError: No module named 'transformer_engine'",
    "cuBLAS": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "torchrun's line": "torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 88121) of binary: python",
    "an assertion": "AssertionError: Rank 3: found NaN in local grad norm for bucket #0 in backward pass before data-parallel "
    "communication collective. Device: 3, node: n7",
    "megatron-core's rerun": f"RuntimeError: {NAN}",
    "NCCL's error": BACKEND.format(SYSTEM),
    "time limit of a step": LIMIT.replace("JOB 7", "STEP 8812.0"),
    "the watchdog": status(3, 7711, 7711, 7710)[len("[rank3]:") :],
    "host of a rank": TABLE.replace("  rank", "  host      : gpu-b12.cluster.local\n  rank"),
}
# More than thirty texts, each after iterations and memory: what diagnose and compare read.
LOGS = {
    **{name: BRIDGE + TRACEBACK + text for name, (text, _, _) in (VARIANTS | REALISTIC).items() if len(text) > 120 and "\n" not in text},
    "Megatron-LM": MEGATRON,
    "watchdog": MEGATRON + timed_out(3, 118)[len("[rank3]:") :],
    "InfiniBand": MEGATRON + MODIFY_QP,
    "InfiniBand, completion": MEGATRON + COMPLETION,
    "duplicate GPU": BRIDGE + "init.cc:943 NCCL WARN " + DUPLICATE.format(0, 1),
    "torchrun": BRIDGE + TABLE,
    "Slurm": BRIDGE + LIMIT,
    "not finite": MEGATRON + NAN,
    "error of Python": BRIDGE + TRACEBACK + "KeyError: 'lm_loss'",
}  # fmt: skip


def read(text):
    return list(lines_of(LogSource("x", None), io.BufferedReader(io.BytesIO(text.encode()))))


def answer(text):
    """What diagnose and compare make of a log."""
    lines = read(text)
    first, reader = first_failure(lines), LogReader()
    for line in lines:
        reader.feed(line)
    log = reader.finish()
    iterations = [
        (row.number, row.step_time_s, row.tflops_per_gpu, str(row.loss), row.grad_norm, row.global_batch_size, row.time)
        for row in log.iterations
    ]
    memory = [(row.rank, row.iteration, row.max_allocated_bytes, row.max_reserved_bytes) for row in log.memory]
    failed = first and (first.failure.rank, first.failure.phase, first.failure.after_step)
    verdict = first and (first.verdict.oom_class, first.verdict.confidence, first.verdict.reason, *failed)
    return verdict, iterations, memory, log.ended


def shattered(rng, line):
    """Break a line at random places; most lines once, some often, some not at all."""
    at, pieces = 0, []
    while at < len(line):
        size = len(line) - at if at and rng.random() < 0.4 else rng.randint(3, max(4, len(line)))
        pieces.append(line[at : at + size])
        at += size
    return pieces


def broken_once(text):
    """Yield the text broken at every place of its lines."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        for at in range(1, len(line)):
            yield "\n".join([*lines[:place], line[:at], line[at:], *lines[place + 1 :]]) + "\n"


def wrapped(text, width):
    return "".join(f"{line[at : at + width]}\n" for line in text.splitlines() for at in range(0, len(line), width))


def labelled(text, label="3: "):
    return "".join(f"{label}{line}\n" for line in text.splitlines())


def broken_by_srun(rng, text):
    return "".join(f"3: {piece}\n" for line in text.splitlines() for piece in shattered(rng, line))


def broken_without_labels(rng, text):
    return "".join(f"{piece}\n" for line in text.splitlines() for piece in shattered(rng, line))


def broken_among_others(rng, text):
    own, others, mixed = broken_by_srun(rng, text).splitlines(), ["0: a line of another rank"] * 9, []
    while own or others:
        source = own if own and rng.random() * (len(own) + len(others)) < len(own) else others or own
        mixed.append(source.pop(0))
    return "\n".join(mixed) + "\n"


@pytest.mark.parametrize("name", LOGS)
def test_a_log_broken_anywhere_has_the_answer_of_the_whole_log(name):
    text, rng = LOGS[name], random.Random(name)
    with_label = answer(labelled(text))
    for _ in range(3):
        assert answer(broken_by_srun(rng, text)) == with_label
        assert answer(broken_among_others(rng, text)) == with_label
        assert answer(broken_without_labels(rng, text)) == answer(text)
    for width in (80, 100, 132, rng.randint(40, 160)):
        assert answer(wrapped(text, width)) == answer(text)
        assert answer(wrapped(labelled(text), width)) == with_label
        of_rank = labelled(text, "[rank3]: ")
        assert answer(wrapped(of_rank, width)) == answer(of_rank)


@pytest.mark.parametrize("end", ENDS.values(), ids=[*ENDS])
def test_a_message_broken_at_any_place_is_the_whole_message(end):
    text = TRACEBACK + end
    assert answer(text)[0] is not None
    assert [broken for broken in broken_once(text) if answer(broken) != answer(text)] == []
    assert [broken for broken in broken_once(text) if answer(labelled(broken)) != answer(labelled(text))] == []


@pytest.mark.parametrize("text", [RAW, PRINTED_NAN, BRIDGE])
def test_an_iteration_broken_at_any_place_has_all_its_values(text):
    text = "\n".join(text.splitlines()[-3:]) + "\n[after training is done] datetime: 2026-08-21 16:00:00\n"
    assert [broken for broken in broken_once(text) if answer(broken) != answer(text)] == []


def test_which_rank_lags_is_known_where_every_rank_broke_its_lines():
    whole = [
        f"{rank}: {line}"
        for rank in range(4)
        for line in (timed_out(rank, 118), status(rank, 118, 117 if rank == 2 else 119, 117))
    ]
    expected, rng = answer("\n".join(whole)), random.Random(7)
    assert "rank 2 is at collective 117" in expected[0][2]
    for _ in range(20):
        queues = [
            [f"{rank}: {piece}" for line in whole if line.startswith(f"{rank}: ") for piece in shattered(rng, line[3:])]
            for rank in range(4)
        ]
        mixed = []
        while queues := [queue for queue in queues if queue]:
            mixed.append(rng.choice(queues).pop(0))
        assert answer("\n".join(mixed)) == expected


def test_a_terminal_may_break_between_the_time_and_the_iteration():
    """At 41 columns every line of an iteration ends behind its time."""
    text = "".join(f"{line}\n" for line in RAW.replace(":01.481093]", ":01.204418]").splitlines())
    whole = labelled(text, "3: [rank3]: ")
    assert answer(wrapped(whole, 41)) == answer(whole)


@pytest.mark.parametrize("width", [60, 72, 78, 100])
@pytest.mark.parametrize("name", [*LOGS][::5])
def test_a_log_that_a_mail_program_broke_between_words_has_the_answer_of_the_whole_log(name, width):
    lines = (part for line in LOGS[name].splitlines() for part in textwrap.wrap(line, width, break_on_hyphens=False))
    assert answer("\n".join(lines) + "\n") == answer(LOGS[name])


@pytest.mark.slow
def test_of_a_thousand_broken_logs_nearly_all_keep_their_answer_without_blanks_at_ends_of_lines():
    """An editor strips blanks. Then nothing tells whether a line was broken before a blank or inside a word, but the words."""
    rng, wrong, count = random.Random(1), 0, 0
    for text in LOGS.values():
        whole, with_label = answer(text), answer(labelled(text))
        for _ in range(10):
            for breaking, expected in ((broken_by_srun, with_label), (broken_without_labels, whole)):
                stripped = "".join(f"{line.rstrip()}\n" for line in breaking(rng, text).splitlines())
                wrong, count = wrong + (answer(stripped) != expected), count + 1
    assert count >= 1000
    assert wrong <= 0.03 * count


def test_a_joined_line_stands_where_it_began_and_keeps_its_rank():
    lines = read(
        "0: up\n3: [rank3]: torch.OutOfMem\n0: up\n3: oryError: CUDA out of memory. Tried to allocate more than\n3:  1EB memory.\n"
    )
    (line,) = [line for line in lines if line.rank == 3]
    assert (line.number, line.text) == (
        2,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
    )


@pytest.mark.parametrize(
    "text",
    [
        BRIDGE + MEGATRON,
        LOGS["2.4 full"] + "\nsaving nothing\nup\n",
        "iteration 7/ 9 | lm loss: 1.0 |\nloading data: done\nepoch 3\n",
        "[Rank 0] (after 2 iterations) memory (MB) | max allocated: 3.00 | max reserved: 4.00\n12\nsaving checkpoint: yes\n",
        "torch.OutOfMemoryError: CUDA out of memory.\nup\nand\nrunning\nValueError: x\n",
        "Processing CUDA\nRuntime\nwent on\n",
        "except KeyError:\n    return {}\nNCCL Error\nwent on\n",
        "1: one\n2: two\n5: File \"x\n4: y\n",
    ],
)  # fmt: skip
def test_lines_that_nobody_broke_stay_as_they_are(text):
    lines = read(text)
    assert sorted(line.number for line in lines) == list(range(1, text.count("\n") + 1))
    assert all(text.splitlines()[line.number - 1].rstrip().endswith(line.text) for line in lines)


@pytest.mark.parametrize(
    ("text", "piece", "exact", "expected"),
    [
        ("GPU 0 has a tot", "al capacity", False, "GPU 0 has a total capacity"),
        ("which 1.94", "GiB is free", False, "which 1.94 GiB is free"),
        ("which 1", ".94 GiB", False, "which 1.94 GiB"),
        ("which 1.", "94 GiB", False, "which 1.94 GiB"),
        ("Tried to", "allocate", True, "Tried to allocate"),
        ("allocate 1", "2 GiB", True, "allocate 12 GiB"),
        ("out of memory.", "Tried", False, "out of memory. Tried"),
        ("torch.", "OutOfMemoryError", False, "torch.OutOfMemoryError"),
        ("lm loss: 1.17E", "+01 |", False, "lm loss: 1.17E+01 |"),
        ("modules/", "module.py", False, "modules/module.py"),
    ],
)  # fmt: skip
def test_a_seam_has_a_blank_only_between_words(text, piece, exact, expected):
    assert glue(text, piece, exact=exact) == expected


@pytest.mark.parametrize("width", [91, 109, 112])
def test_a_terminal_of_any_width_loses_no_letter_of_a_message_about_host_memory(width):
    of_rank = labelled(LOGS["host"], "[rank3]: ")
    assert answer(wrapped(of_rank, width)) == answer(of_rank)
