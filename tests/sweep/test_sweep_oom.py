"""Sweeps in which cells ran out of memory: where, how much, and what is recommended then."""

from pathlib import Path
from typing import Any

import pytest

from harness.records.rank import Failure, MemoryRecord
from harness.records.run import RunRecord
from harness.records.sweep import read_sweep
from harness.sweep.judge import judge_sweep
from harness.units import GIB

RECORDED = Path(__file__).parents[1] / "data" / "sweeps" / "cpu_oom"


@pytest.fixture(name="oom")
def _oom(runs) -> Any:
    def build(recompute: str) -> list[RunRecord]:
        record = runs(recompute, [1.0], 79)[0]
        memory = MemoryRecord(meter="cuda", max_allocated_bytes=79 * GIB, device_total_bytes=80 * GIB)
        failure = Failure(kind="oom", message="CUDA out of memory", phase="forward_backward", step=1, request_bytes=GIB)
        first = record.ranks[3].model_copy(
            update={"failure": failure, "finished": False, "memory": memory, "steps": ()}
        )
        ranks = (*record.ranks[:3], first, *record.ranks[4:])
        return [record.model_copy(update={"status": "oom", "failure": "rank 3: CUDA out of memory", "ranks": ranks})]

    return build  # fmt: skip


def test_an_out_of_memory_says_where_and_how_much(oom, runs, make_cell, make_sweep):
    verdict = judge_sweep(make_sweep([make_cell("none", oom("none")), make_cell("mlp", runs("mlp", [1.1], 60))]))
    line = verdict.cell("none").oom

    assert verdict.cell("none").status == "oom"
    assert (line.rank, line.when, line.request_bytes) == (3, "in forward_backward of step 1", GIB)
    assert line.peak_allocated_bytes == 79 * GIB
    assert " (low)" in line.verdict


def test_with_a_control_out_of_memory_nothing_is_compared_but_one_is_recommended(oom, runs, make_cell, make_sweep):
    verdict = judge_sweep(make_sweep([make_cell("none", oom("none")), make_cell("mlp", runs("mlp", [1.1], 60))]))

    assert verdict.cell("mlp").vs_control is None
    assert " none " in verdict.cell("mlp").not_compared
    assert verdict.recommendation.cell == "mlp"


def test_where_all_ran_out_of_memory_nothing_is_recommended(oom, make_cell, make_sweep):
    verdict = judge_sweep(make_sweep([make_cell("none", oom("none")), make_cell("mlp", oom("mlp"))]))

    assert verdict.pareto == ()
    assert verdict.recommendation.cell is None
    assert verdict.recommendation.why.endswith(": 2 OOM.")


def test_one_repeat_out_of_memory_makes_the_cell_so(oom, runs, make_cell, make_sweep):
    verdict = judge_sweep(make_sweep([make_cell("none", [*runs("none", [1.0, 1.0], 78), *oom("none")])]))

    assert verdict.cell("none").status == "oom"
    assert "2 of 3 runs" in verdict.cell("none").reason


def test_a_recorded_sweep_with_a_real_out_of_memory():
    verdict = judge_sweep(read_sweep(RECORDED))

    assert [cell.status for cell in verdict.cells] == ["oom", "ok", "ok"]
    assert verdict.cell("none").oom.request_bytes is not None
    assert " (high)" in verdict.cell("none").oom.verdict
    assert verdict.cell("mlp").predicted.peak_error == pytest.approx(0.001, abs=0.0005)
    assert verdict.recommendation.cell == "full:uniform:1"
