"""The text of `mbr-perf explain`."""

import pytest

from harness.explain.facts import run_side
from harness.explain.judge import explain
from harness.explain.show import change_blocks, coverage, explanation_page
from harness.explain.values import NotRecorded, Side
from harness.show.page import Page
from tests.commands import piped


def lines_of(*blocks):
    """The lines that a pipe gets."""
    return piped(Page(blocks))


def side(**changes):
    return Side("a", "run", {}, {}, frozenset(), **changes)


def test_without_metrics_there_is_no_table():
    assert lines_of(*change_blocks((), side())) == []


def test_causes_come_after_the_verdict(make_record):
    ours = run_side(make_record(seconds=1.1, provenance={"driver_version": "570.1", "hostname": "node1"}), name="a")
    found = explain(ours, run_side(make_record(), name="b"))
    lines = piped(explanation_page(found))
    for cause in found.causes:
        assert sum(line.endswith(f"{cause.rank}. {cause.name}") for line in lines) == 1


@pytest.mark.parametrize(("num", "text"), [(3, "(a0, a1, a2)"), (4, "(4)")])
def test_up_to_three_facts_that_one_side_did_not_record_are_named(num, text):
    names = [f"a{number}" for number in range(num)]
    (line,) = (
        row
        for row in coverage({}, NotRecorded(run={}, reference={"environment": names}, neither=()))
        if row.startswith("Not recorded by the reference")
    )
    assert line.endswith(f"{text}.")
