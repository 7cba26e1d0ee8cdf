"""What a setting saves in memory, and what a sweep on another machine would do."""

import pytest

from harness.judge.derive import derive
from harness.judge.saving import another_machine, elsewhere, memory_saving
from harness.records.metrics import METRICS, Speed, cell_figure
from harness.units import GIB, MIB


@pytest.fixture(name="saving")
def _saving(runs):
    """What a cell of that peak saves against a control of 50 GiB."""

    def work_out(*, cell=None, control=None):
        cell, control = cell or runs("mlp", [1.0], 40), control or runs("none", [1.0], 50)
        return memory_saving((cell, derive(cell[0])), (control, derive(control[0])))

    return work_out


def remembering(runs, memory, ranks=range(8)):
    """The runs with ``memory(own)`` in place of what each of these ranks has of its memory."""
    return [
        run.model_copy(update={"ranks": tuple(
            rank.model_copy(update={"memory": memory(rank.memory)}) if rank.rank in ranks else rank for rank in run.ranks
        )})
        for run in runs
    ]  # fmt: skip


def without_reserved(runs):
    return remembering(runs, lambda own: own.model_copy(update={"max_reserved_bytes": None}))


def test_every_rank_saves_where_both_sides_cut_the_model_alike_and_runs_differ_by_a_segment(saving):
    found = saving()
    assert {(rank.rank, rank.saved_bytes) for rank in found.ranks} == {(rank, 10 * GIB) for rank in range(8)}
    assert found.noise_bytes == 2 * MIB


def test_no_rank_is_compared_with_one_of_another_layout(saving, runs):
    control = runs("none", [1.0], 50)
    parallelism = control[0].spec.parallelism.model_copy(update={"tensor_model_parallel_size": 4})
    spec = control[0].spec.model_copy(update={"parallelism": parallelism})
    found = saving(control=[control[0].model_copy(update={"spec": spec})])
    assert (found.saved_bytes, found.ranks) == (10 * 1024 * MIB, ())


def test_a_rank_without_a_reading_leaves_the_saving_unknown(saving, runs):
    assert saving(cell=remembering(runs("mlp", [1.0], 40), lambda _: None, ranks=(0,))) is None


def test_without_a_finished_run_no_host_is_another(make_cell, make_sweep, runs):
    failed = [run.model_copy(update={"status": "failed"}) for run in runs("none", [1.0], 50)]
    assert elsewhere(make_sweep([make_cell("none", failed)]), "node1") == ""


def test_the_figure_of_a_cell_is_that_of_its_repeats_where_they_have_one(runs):
    metrics = derive(runs("none", [1.0], 50)[0])
    speed = Speed(step_time_s=2.0, tflops_per_gpu=None, tokens_per_s_per_gpu=None, mfu=None, hfu=None, num_runs=3)
    of = {metric.name: cell_figure(metric, metrics, speed) for metric in METRICS}
    assert of["step_time_s"] == 2.0
    assert of["tflops_per_gpu"] is None
    assert of["peak_allocated_bytes"] == metrics.peak_allocated_bytes.value


def test_a_peak_that_one_side_lacks_is_not_compared(saving, runs):
    allocated, reserved = {"peak_allocated_bytes": 10 * GIB}, {"peak_reserved_bytes": 10 * GIB}
    assert saving().saved_by_metric == allocated | reserved
    assert saving(cell=without_reserved(runs("mlp", [1.0], 40))).saved_by_metric == allocated
    assert saving(control=without_reserved(runs("none", [1.0], 50))).saved_by_metric == allocated


@pytest.mark.parametrize(
    ("peaks", "noise_bytes"),
    [((40, 40), round(0.005 * 40 * GIB)), ((40, 39), GIB), ((40, 40, 40), MIB // 16), ((40, 39, 40), GIB)],
)
def test_repeats_on_a_cpu_differ_by_what_they_show_or_by_what_is_known(saving, runs, peaks, noise_bytes):
    cell = [run for peak in peaks for run in runs("mlp", [1.0], peak, gpu="cpu")]
    assert saving(cell=cell, control=cell).noise_bytes == noise_bytes


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ({}, {}, ""),
        ({"driver_version": None}, {}, ""),
        ({}, {"driver_version": None}, ""),
        ({}, {"hostname": "node7"}, "host node7, not node0"),
        ({}, {"driver_version": "580.1", "device_name": "H200"},
         "device H200, not NVIDIA H100 80GB HBM3; driver 580.1, not 550.54.15"),
    ],
)  # fmt: skip
def test_only_known_facts_make_another_machine(runs, before, now, text):
    first, run = (
        each.model_copy(update={"provenance": each.provenance.model_copy(update=changes)})
        for each, changes in zip(runs("none", [1.0, 1.0], 50), (before, now), strict=True)
    )
    assert another_machine([first, run], first).partition(": ")[2] == text
    assert another_machine([run], None) == ""
