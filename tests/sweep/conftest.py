"""Sweeps made by hand."""

import pytest

from harness.sweep.judge import judge_sweep


@pytest.fixture
def judged(runs, make_cell, make_sweep):
    """The verdict on a sweep. Of a cell: seconds of its runs, their peak in GiB, what else changes; or why it has no runs."""

    def cell(name, found):
        if isinstance(found, dict):
            return make_cell(name, [], **found)
        seconds, gib, *more = found
        changes = {"recompute": name} | dict(*more)
        return make_cell(name, runs(changes.pop("recompute"), seconds, gib, **changes))

    return lambda cells, **changes: judge_sweep(make_sweep([cell(*each) for each in cells.items()], **changes))
