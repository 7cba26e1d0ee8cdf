"""Pictures of a sweep: what each shows, and what it leaves out."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.records.rank import MemoryRecord
from harness.records.sweep import SweepData, read_sweep
from harness.show.page import Picture
from harness.sweep.judge import judge_sweep
from harness.sweep.page import pictures
from tests.conftest import LLAMA3_70B

RECORDED = Path(__file__).parents[1] / "data" / "sweeps" / "cpu_oom"
GIB = 1 << 30


def drawn(data: SweepData) -> dict[str, Picture]:
    return {picture.name: picture for picture in pictures(judge_sweep(data))}


@pytest.fixture(name="recorded", scope="module")
def _recorded() -> dict[str, Picture]:
    return drawn(read_sweep(RECORDED))


def test_every_point_has_its_cells_number_and_the_chosen_one_is_marked(recorded):
    found = recorded["memory_throughput"]
    assert {point.name: point.number for point in found.chart.points} == {"mlp": "1", "full:uniform:1": "2"}
    assert len({point.kind for point in found.chart.points}) == 2
    assert [limit.text for limit in found.chart.across] == ["usable 125.13 MiB"]


def test_a_sweep_in_which_nothing_ran_has_no_pictures(make_cell, make_sweep):
    assert drawn(make_sweep([make_cell("none", [], fate="not_run", reason="no time")])) == {}


def measured(
    make_spec, make_rank, make_record, make_cell, name: str, seconds: list[float], gib: int, **batch: int
) -> Any:
    """A cell on eight GPUs with a repeat for each of these step times."""
    sizes = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096}
    model = LLAMA3_70B | {"num_layers": 20}
    spec = make_spec(recompute="none", num_gpus=8, parallelism={}, model=model, batch=sizes | batch)
    memory = MemoryRecord(meter="cuda", max_allocated_bytes=gib << 30)
    runs = [make_record(spec, ranks=tuple(make_rank(spec, rank, each, memory=memory) for rank in range(8)))
            for each in seconds]  # fmt: skip
    return make_cell(name, runs)


def test_the_line_of_the_pareto_set_only_rises_and_no_cell_stands_above_it(
    make_spec, make_rank, make_record, make_cell, make_sweep
):
    """TFLOP/s of the longer sequence are more at fewer tokens per second; one outlier moves a mean, not a median."""
    build = partial(measured, make_spec, make_rank, make_record, make_cell)
    data = make_sweep([
        build("sl=4096", [1.0, 1.0, 1.0], 60),
        build("sl=8192", [2.1, 2.1, 2.1], 50, seq_length=8192),
        build("outlier", [0.99, 0.99, 1.6], 55),
        build("fast", [0.9, 0.9, 0.9], 70),
    ])  # fmt: skip
    chart = drawn(data)["memory_throughput"].chart
    ((front,), cells) = ([curve.places for curve in chart.curves], {point.name: point for point in chart.points})

    assert judge_sweep(data).pareto == ("fast", "sl=4096", "sl=8192", "outlier")
    assert list(front) == sorted(front, key=lambda at: at[1])
    assert cells["sl=8192"].y == pytest.approx(8192 / 2.1)
    for point in cells.values():
        assert point.y <= max(y for x, y in front if x <= point.x)
    assert cells["outlier"].upwards == (pytest.approx(4096 / 1.6), pytest.approx(4096 / 0.99))
