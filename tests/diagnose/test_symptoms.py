"""Every known symptom, and jobs that only look like it."""

import pytest

from harness.diagnose.diagnosis import diagnose, recognised
from tests.diagnose.conftest import FRAGMENTED

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
