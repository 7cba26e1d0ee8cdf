"""What a sweep exits with: golden values of one of its cells, runs that are still due, cells that ran out of memory."""

from pathlib import Path
from typing import Any

import pytest

from harness.errors import ExitCode
from harness.records.gating import GateOptions
from harness.records.goldens import golden_text
from harness.records.rank import Failure, MemoryRecord
from harness.records.run import RunRecord
from harness.records.sweep import read_sweep
from harness.sweep.judge import judge_sweep
from harness.sweep.reports import sweep_exit_code
from harness.units import GIB


@pytest.fixture(name="cells")
def _cells(make_spec, make_record, make_cell) -> Any:
    """Two settings that took these seconds per step."""

    def build(**seconds: float) -> list[Any]:
        return [make_cell(name, [make_record(make_spec(recompute=name), each)]) for name, each in seconds.items()]

    return build


@pytest.fixture(name="golden_file")
def _golden_file(tmp_path, make_spec, make_record, make_golden) -> Any:
    """A golden of that setting, measured with a second per step."""

    def write(recompute: str) -> Any:
        record = make_record(make_spec(recompute=recompute), 1.0)
        flops = tflops_of(record)
        path = tmp_path / f"{recompute}.json"
        path.write_text(golden_text(make_golden(record, {"tflops_per_gpu": flops})))
        return path

    return write


def tflops_of(record: Any) -> float:
    from harness.judge.derive import derive

    summary = derive(record).tflops_per_gpu
    assert summary is not None
    return summary.median


@pytest.mark.parametrize(("seconds", "code"), [(1.0, ExitCode.OK), (2.0, ExitCode.REGRESSION)])
def test_a_golden_file_is_for_the_cell_of_its_settings_alone(cells, golden_file, make_sweep, seconds, code):
    gate = GateOptions(golden_values_path=golden_file("mlp"))
    verdict = judge_sweep(make_sweep(cells(none=3.0, mlp=seconds)), gate)

    assert [cell.golden is not None for cell in verdict.cells] == [False, True]
    assert sweep_exit_code(verdict, gate) is code


def test_a_golden_file_for_none_of_the_cells_is_reported_and_inconclusive(cells, golden_file, make_sweep):
    gate = GateOptions(golden_values_path=golden_file("core_attn"))
    verdict = judge_sweep(make_sweep(cells(none=1.0, mlp=1.0)), gate)

    assert "core_attn.json " in verdict.notes[-1]
    assert sweep_exit_code(verdict, gate) is ExitCode.INCONCLUSIVE


def test_a_required_golden_or_a_folder_of_goldens_has_to_hold_one_for_every_cell(
    cells, golden_file, tmp_path, make_sweep
):
    required = GateOptions(golden_values_path=golden_file("mlp"), require_golden=True)
    for gate in (required, GateOptions(golden_values_path=tmp_path)):
        code = sweep_exit_code(judge_sweep(make_sweep(cells(none=1.0, mlp=1.0)), gate), gate)
        assert code is ExitCode.INCONCLUSIVE
    accepting = GateOptions(golden_values_path=golden_file("mlp"), accept_differences=("recompute",))
    assert all(cell.golden for cell in judge_sweep(make_sweep(cells(none=1.0, mlp=1.0)), accepting).cells)


@pytest.mark.parametrize(("repeats", "code"), [(1, ExitCode.OK), (2, ExitCode.INCONCLUSIVE)])
def test_a_sweep_with_runs_to_do_has_no_answer_yet(cells, make_sweep, repeats, code):
    assert sweep_exit_code(judge_sweep(make_sweep(cells(none=1.0), repeats=repeats)), GateOptions()) is code


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


def test_an_out_of_memory_says_where_and_how_much_and_of_a_control_it_leaves_a_recommendation(
    oom, runs, make_cell, make_sweep
):
    verdict = judge_sweep(make_sweep([make_cell("none", oom("none")), make_cell("mlp", runs("mlp", [1.1], 60))]))
    cell = verdict.cell("none")
    assert (cell.status, cell.out_of_memory.rank, cell.out_of_memory.confidence) == ("oom", 3, "low")
    assert (cell.oom_peak_bytes, cell.reason) == (79 * GIB, "rank 3: CUDA out of memory")
    assert verdict.cell("mlp").vs_control is None
    assert " none " in verdict.cell("mlp").not_compared
    assert verdict.recommendation.cell == "mlp"


def test_where_all_ran_out_of_memory_nothing_is_recommended(oom, make_cell, make_sweep):
    verdict = judge_sweep(make_sweep([make_cell("none", oom("none")), make_cell("mlp", oom("mlp"))]))

    assert verdict.pareto == ()
    assert verdict.recommendation.cell is None


def test_one_repeat_out_of_memory_makes_the_cell_so(oom, runs, make_cell, make_sweep):
    verdict = judge_sweep(make_sweep([make_cell("none", [*runs("none", [1.0, 1.0], 78), *oom("none")])]))

    assert verdict.cell("none").status == "oom"
    assert "2 of 3 runs" in verdict.cell("none").reason


def test_a_recorded_sweep_with_a_real_out_of_memory():
    verdict = judge_sweep(read_sweep(RECORDED))

    assert [cell.status for cell in verdict.cells] == ["oom", "ok", "ok"]
    assert verdict.cell("none").out_of_memory.confidence == "high"
    assert verdict.cell("mlp").predicted.peak_error == pytest.approx(0.001, abs=0.0005)
    assert verdict.recommendation.cell == "full:uniform:1"
