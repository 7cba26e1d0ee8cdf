"""What a sweep exits with: golden values that are for one of its cells, runs that are still due."""

from typing import Any

import pytest

from harness.errors import ExitCode
from harness.records.gating import GateOptions
from harness.records.goldens import golden_text
from harness.sweep.judge import judge_sweep
from harness.sweep.reports import sweep_exit_code


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
    assert sweep_exit_code(verdict, gate, 0) is code


def test_a_golden_file_for_none_of_the_cells_is_reported_and_inconclusive(cells, golden_file, make_sweep):
    gate = GateOptions(golden_values_path=golden_file("core_attn"))
    verdict = judge_sweep(make_sweep(cells(none=1.0, mlp=1.0)), gate)

    assert "core_attn.json " in verdict.notes[-1]
    assert sweep_exit_code(verdict, gate, 0) is ExitCode.INCONCLUSIVE


def test_an_accepted_difference_makes_the_file_one_for_all_cells(cells, golden_file, make_sweep):
    gate = GateOptions(golden_values_path=golden_file("mlp"), accept_differences=("recompute",))
    verdict = judge_sweep(make_sweep(cells(none=1.0, mlp=1.0)), gate)

    assert all(cell.golden for cell in verdict.cells)


def test_a_required_golden_is_required_of_every_cell(cells, golden_file, make_sweep):
    gate = GateOptions(golden_values_path=golden_file("mlp"), require_golden=True)

    assert sweep_exit_code(judge_sweep(make_sweep(cells(none=1.0, mlp=1.0)), gate), gate, 0) is ExitCode.INCONCLUSIVE


def test_a_folder_of_goldens_has_to_hold_one_for_every_cell(cells, tmp_path, make_sweep):
    gate = GateOptions(golden_values_path=tmp_path)

    assert sweep_exit_code(judge_sweep(make_sweep(cells(none=1.0)), gate), gate, 0) is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(("num_due", "code"), [(0, ExitCode.OK), (1, ExitCode.INCONCLUSIVE)])
def test_a_sweep_with_runs_to_do_has_no_answer_yet(cells, make_sweep, num_due, code):
    assert sweep_exit_code(judge_sweep(make_sweep(cells(none=1.0))), GateOptions(), num_due) is code
