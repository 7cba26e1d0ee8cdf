"""Every known symptom, and jobs that only look like it."""

import pytest

from harness.diagnose.diagnosis import diagnose, recognised
from harness.diagnose.timing import timed
from harness.failures.failure_scan import FailureScan
from harness.failures.first_failure import failure_of
from harness.foreign.logs.lines import LogLine
from harness.foreign.reader import LogReader
from tests.diagnose.conftest import FRAGMENTED, FULL

TEXTS = (
    ("R20", "AssertionError: full recompute is only supported with full iteration CUDA graph."),
    ("R18", "ValueError: Currently there is no support for Pipeline parallelism with CPU offloading"),
)  # fmt: skip


def found(case):
    return {row.id: row for row in recognised(case)}


@pytest.mark.parametrize(("symptom", "text"), TEXTS)
def test_megatron_cores_own_message_names_the_symptom_without_any_settings(case, symptom, text):
    row = found(case(text, spec=None))[symptom]
    assert (row.evidence, row.is_said) == (f"job: {text}", True)


@pytest.mark.parametrize(
    ("rows", "changes", "is_seen"),
    [
        (((0, 74, True), (1, 60, False), (2, 58, False)), {"expandable_segments": False}, True),
        (((0, 74, True), (1, 60, False)), {}, True),
        (((0, 74, True), (1, 60, False)), {"origin": "log"}, False),
        (((0, 74, True), (1, 74, False)), {}, False),
        (((0, 74, True), (1, 74, True)), {}, False),
        (((0, 74, True), (1, 78, False)), {}, False),
    ],
)
def test_other_ranks_have_room_by_their_own_peaks_until_the_failure_only(case, figures, rows, changes, is_seen):
    evidence = diagnose(case(FRAGMENTED, ranks=figures(*rows), **changes)).evidence
    assert any(text.startswith("Only rank 0 ran out") for text in evidence) is is_seen


@pytest.mark.parametrize("is_dense", [True, False])
def test_no_advice_on_a_dense_job_is_about_experts(is_dense):
    lines = [f"[2026-01-02 03:04:05.0] iteration {n}/ 50 | elapsed time per iteration (ms): 9.0 |" for n in (1, 2, 3)]
    read, scan = LogReader(), FailureScan()
    for number, text in enumerate((*lines, f"[rank3]: {FULL}"), start=1):
        read.feed(LogLine(text, "job.log", number))
        scan.feed(LogLine(text, "job.log", number))
    found, _ = timed(read.finish(), failure_of(scan, None), is_dense=is_dense)
    assert ("expert" in found.advice, "{" in found.advice) == (not is_dense, False)
