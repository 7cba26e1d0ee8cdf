"""Pictures: what each shows, what is said where there is none."""

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.records.prediction import PredictionRecord
from harness.records.rank import MemoryRecord, MemorySeries
from harness.records.run import RunRecord
from harness.records.sweep import SweepData, read_sweep
from harness.show.charts.drawing import obstacle
from harness.sweep.judge import judge_sweep
from tests.conftest import LLAMA3_70B

RECORDED = Path(__file__).parents[1] / "data" / "sweeps" / "cpu_oom"
draws = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


@pytest.fixture(name="specs", scope="module")
def _specs() -> dict[str, Any]:
    if obstacle():
        pytest.skip(obstacle())
    return drawn(read_sweep(RECORDED))


def drawn(data: SweepData) -> dict[str, Any]:
    from harness.sweep.pictures.gallery import pictures

    return {
        picture.name: json.loads(picture.vega_lite) if picture.vega_lite else picture.caption
        for picture in pictures(data, judge_sweep(data))
    }


def rows(spec: Any) -> list[dict[str, Any]]:
    """All inline rows of a specification."""
    found = []
    for name, value in spec.items() if isinstance(spec, dict) else enumerate(spec):
        if name == "data":
            found += value.get("values", [])
        elif name == "datasets":
            found += [row for values in value.values() for row in values]
        elif isinstance(value, dict | list):
            found += rows(value)
    return found


def test_every_point_has_its_cells_number(specs):
    marks = {row["cell"]: row["text"] for row in rows(specs["memory_throughput"]) if "state" in row}

    assert marks == {"mlp": "1", "full:uniform:1": "2 (use this)"}


def test_the_memory_there_is_is_a_line(specs):
    assert "memory 133.12 MiB" in [row.get("text") for row in rows(specs["memory_throughput"])]


def test_axes_have_units(specs):
    text = json.dumps(specs, ensure_ascii=False)

    for title in ("(MiB)", "(tokens/s/GPU)", "Share of the step (%)"):
        assert title in text


def test_bars_of_a_rank_add_up_to_what_the_device_held(make_spec, make_rank, make_record, make_cell, make_sweep):
    if obstacle():
        pytest.skip(obstacle())
    spec, gib = make_spec(recompute="none"), 1024**3
    memory = MemoryRecord(
        meter="cuda", max_allocated_bytes=60 * gib, max_reserved_bytes=64 * gib, max_device_used_bytes=66 * gib
    )
    ranks = tuple(make_rank(spec, rank, memory=memory) for rank in range(32))
    parts = rows(drawn(make_sweep([make_cell("none", [make_record(spec, ranks=ranks)])]))["rank_memory"])

    assert [row["size"] for row in parts if row["rank"] == "rank 0 (stage 0)"] == [60, 4, 2]
    assert {row["rank"] for row in parts} == {
        "rank 0 (stage 0)", "rank 8 (stage 1)", "rank 16 (stage 2)", "rank 24 (stage 3)",
    }  # fmt: skip


@draws
def test_a_cpu_report_names_allocated_bytes_as_its_only_memory_figure():
    from harness.sweep.pictures.cells import rank_memory

    data = read_sweep(RECORDED)

    assert "Only allocated bytes exist" in rank_memory(data, judge_sweep(data)).caption


def test_the_timeline_shows_the_two_cells_that_ran(specs):
    assert {row["cell"] for row in rows(specs["timeline"])} == {"1: mlp, rank 0", "2: full:uniform:1, rank 0"}


def test_a_sweep_in_which_nothing_ran_has_reasons_for_pictures(make_cell, make_sweep):
    if obstacle():
        pytest.skip(obstacle())
    found = drawn(make_sweep([make_cell("none", [], fate="not_run", reason="no time")]))

    assert all(isinstance(reason, str) and reason for reason in found.values())


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


@draws
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
    found = rows(drawn(data)["memory_throughput"])
    front = [(row["x"], row["y"]) for row in found if row.keys() == {"x", "y"}]
    cells = {row["cell"]: row for row in found if "state" in row}

    assert judge_sweep(data).pareto == ("fast", "sl=4096", "sl=8192", "outlier")
    assert front == sorted(front, key=lambda at: at[1])
    assert cells["sl=8192"]["y"] == pytest.approx(8192 / 2.1)
    for row in cells.values():
        assert row["y"] <= max(y for x, y in front if x <= row["x"])
    (spread,) = [row for row in found if row.keys() == {"x", "low", "high"}]
    assert (spread["low"], spread["high"]) == (pytest.approx(4096 / 1.6), pytest.approx(4096 / 0.99))


@draws
def test_the_drawing_library_is_not_ended_or_broken_by_its_own_text():
    from harness.show.charts import drawing as rendering

    library = rendering.library()

    assert "/</g" in library  # a regular expression of vega's, which `<\\/` would break
    assert "</script" not in library.lower()
    assert "<!--" not in library


@pytest.mark.slow
@draws
@pytest.mark.skipif(shutil.which("node") is None, reason="no node to read scripts with")
def test_the_scripts_of_the_page_are_javascript(tmp_path):
    from harness.show.charts import drawing as rendering
    from harness.sweep.pictures.gallery import pictures

    data = read_sweep(RECORDED)
    drawn_here = pictures(data, judge_sweep(data))
    for name, text in (("library", rendering.library()), ("pictures", rendering.embedding(drawn_here))):
        (tmp_path / f"{name}.js").write_text(text, encoding="utf-8")
        checked = subprocess.run(
            ["node", "--check", tmp_path / f"{name}.js"], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr[:500]


@draws
def test_a_picture_says_what_it_leaves_out(make_spec, make_rank, make_record, make_cell, make_sweep):
    from harness.sweep.pictures.gallery import pictures

    series = MemorySeries(interval_s=0.1, max_bytes=(1 << 30, 2 << 30), what="allocated bytes")

    def cell(name: str, seconds: float, gib: int) -> Any:
        spec = make_spec(recompute=name)
        memory = MemoryRecord(meter="cuda", max_allocated_bytes=gib << 30, timeline=series)
        ranks = tuple(make_rank(spec, rank, seconds, memory=memory) for rank in range(32))
        return make_cell(name, [make_record(spec, ranks=ranks)] * 2)

    data = make_sweep([cell("none", 1.0, 70), cell("mlp", 1.1, 60), cell("core_attn", 1.2, 50)])
    found = {picture.name: picture for picture in pictures(data, judge_sweep(data))}

    assert found["timeline"].caption.endswith("Not drawn: mlp.")
    assert json.loads(found["rank_memory"].vega_lite)["resolve"]["axis"] == {"x": "independent"}


@draws
def test_repeats_have_the_range_of_each_ranks_peaks_and_the_interval_of_the_time(runs, make_cell, make_sweep):
    from harness.sweep.pictures.gallery import pictures

    steady = runs("none", [9.1, 9.3, 9.2], 74.0)
    spread = [*runs("mlp", [9.9, 10.1], 56.0), *runs("mlp", [10.0], 55.0)]
    predicted = [replace_prediction(run, 60 << 30) for run in spread]
    data = make_sweep(
        [make_cell("none", [replace_prediction(run, 75 << 30) for run in steady]), make_cell("mlp", predicted)]
    )
    verdict = judge_sweep(data)
    found = {
        picture.name: rows(json.loads(picture.vega_lite)) for picture in pictures(data, verdict) if picture.vega_lite
    }

    spans = {(row["cell"], row["rank"]): (row["low"], row["high"]) for row in found["rank_memory"] if "low" in row}
    assert len(spans) == 8 and spans["1: mlp", "rank 7 (stage 0)"] == (55.0, 56.0)
    (measured,) = [row for row in found["predicted_measured"] if "least" in row]
    interval = verdict.cell("mlp").vs_control.time.interval
    assert (measured["cell"], measured["kind"]) == ("1: mlp", "measured")
    assert (measured["least"], measured["most"]) == pytest.approx((interval[0] * 100, interval[1] * 100))


def replace_prediction(run: RunRecord, peak_bytes: int) -> RunRecord:
    prediction = PredictionRecord(
        peak_bytes=peak_bytes,
        range_bytes=(peak_bytes - (1 << 30), peak_bytes + (1 << 30)),
        stages=(),
        model_flops=100,
        recompute_flops=5,
    )
    return run.model_copy(update={"prediction": prediction})
