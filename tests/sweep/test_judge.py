"""A sweep judged: cells against their control, the Pareto set, the setting to use."""

import re

import pytest

from harness.judge.saving import elsewhere
from harness.show.page import plain
from harness.sweep.judge import judge_sweep
from harness.sweep.page import cell_table
from harness.sweep.remarks import answer, closing_lines, remarks
from harness.sweep.values import SweepVerdict
from harness.units import GIB
from tests.commands import json_of
from tests.sweep.conftest import predicted


@pytest.fixture(name="three_settings")
def _three_settings(judged) -> SweepVerdict:
    """Three repeats each: mlp is 10 % slower and saves 10 GiB, core_attn is slower and saves nothing to speak of."""
    return judged(
        {"none": ([1.00, 1.01, 0.99], 70), "mlp": ([1.10, 1.11, 1.09], 60), "core_attn": ([1.20, 1.21, 1.19], 70)}
    )


def test_time_memory_and_price_are_against_the_control_and_memory_rank_by_rank(three_settings):
    versus = three_settings.cell("mlp").vs_control
    assert versus.time_change == pytest.approx(0.10)
    assert versus.memory_saved_bytes == 10 * GIB
    assert versus.ms_per_gib_saved == pytest.approx(10.0)
    assert versus.ms_per_gib_saved_interval[0] < 10.0 < versus.ms_per_gib_saved_interval[1]
    assert [(rank.rank, rank.saved_bytes) for rank in versus.ranks] == [(rank, 10 * GIB) for rank in range(8)]
    assert three_settings.cell("core_attn").vs_control.ms_per_gib_saved is None


def test_a_cell_that_another_beats_in_both_is_not_in_the_pareto_set(three_settings):
    assert three_settings.pareto == ("none", "mlp")


def test_the_fastest_that_fits_is_recommended_with_the_runner_up(three_settings):
    assert three_settings.recommendation.cell == "none"
    assert re.search(r"\b3 settings .* 73.00 GiB", three_settings.recommendation.why)


def test_a_cell_without_margin_is_not_recommended(judged):
    verdict = judged({"none": ([1.0], 77), "mlp": ([1.1], 60)})

    assert verdict.cell("none").fits is False
    assert verdict.recommendation.cell == "mlp"
    assert re.search(r"the only setting .* 73.00 GiB", verdict.recommendation.why)


def test_a_cell_whose_allocator_had_to_retry_does_not_fit(judged):
    verdict = judged({"none": ([1.0], 60, {"retries": 2})})

    assert verdict.cell("none").fits is False


def test_overlapping_intervals_are_reported(judged):
    verdict = judged({"none": ([1.00, 1.10, 0.90], 70), "mlp": ([1.05, 1.15, 0.95], 60)})

    assert verdict.recommendation.cell == "mlp"
    assert verdict.pareto == ("none", "mlp")
    assert verdict.cell("mlp").vs_control.ms_per_gib_saved is None
    assert re.search(r": none; mlp; .*23 %", [*closing_lines(verdict)][-1])
    assert re.search(r"^Use mlp: 2 of 2 .*, \+5.0 % \(-17.7 to \+27.7 %\).* 10.00 GiB", plain(answer(verdict).words))


def test_of_cells_that_may_be_the_fastest_the_smallest_is_used_and_slower_ones_are_counted(judged):
    verdict = judged(
        {"none": ([1.00, 1.01, 0.99], 70), "core_attn": ([1.01, 1.00, 1.00], 65), "mlp": ([1.20, 1.21, 1.19], 60)}
    )

    assert verdict.recommendation.cell == "core_attn"
    assert json_of(verdict)["equally_fast"] == ["none", "core_attn"]
    assert re.search(r"\b2 of 3 settings .* 73.00 GiB", verdict.recommendation.why)
    assert verdict.pareto == ("none", "core_attn", "mlp")


def test_the_step_that_is_shown_is_the_one_that_is_compared(judged):
    verdict = judged({"none": ([0.10, 0.10, 0.10], 70), "mlp": ([0.10, 0.10, 0.16], 60)})
    cell, table = verdict.cell("mlp"), cell_table(verdict).filled()
    titles, texts = [column.title for column in table.columns], [[plain(cell) for cell in row] for row in table.rows]
    step, tflops = (titles.index(title) for title in ("Step", "TFLOP/s/GPU"))

    assert (texts[0][step], texts[1][step]) == ("100.0 ms", "120.0 ms")
    assert any(text.startswith("+20.0 %") for text in texts[1])
    rates = [float(row[tflops].replace(",", "")) for row in texts]
    assert rates[0] / rates[1] == pytest.approx(1.2, abs=1e-4)
    assert cell.speed.tokens_per_s_per_gpu == pytest.approx(8 * 4096 / 8 / 0.12)
    assert cell.speed.step_time_s == pytest.approx(cell.cost_s)
    found = json_of(verdict)["cells"][1]
    assert (found["speed"]["step_time_s"], found["metrics"]["step_time_s"]["median"]) == (pytest.approx(0.12), 0.10)


def test_one_repeat_has_no_interval_and_says_so(judged):
    verdict = judged({"none": ([1.0], 70), "mlp": ([1.1], 60)})

    assert verdict.cell("mlp").vs_control.time_change_interval is None
    assert verdict.recommendation.cell == "none"
    assert any("interval" in line and " 3 runs" in line for line in closing_lines(verdict))


def test_single_runs_that_differ_by_less_than_the_threshold_are_not_ranked(runs, make_cell, make_sweep):
    cells = [make_cell("none", runs("none", [1.0], 70)), make_cell("mlp", runs("mlp", [1.04], 60))]

    verdict = judge_sweep(make_sweep([*cells, make_cell("full:uniform:1", runs("full:uniform:1", [1.7], 50))]))
    assert verdict.recommendation.equally_fast == ("none", "mlp")
    assert re.search(r" 5 % .* 3 runs", verdict.recommendation.noise)
    assert re.search(r"^Use mlp: 2 of 3 .* less memory, \+4\.0 % time", plain(answer(verdict).words))
    equal = judge_sweep(make_sweep([cells[0], make_cell("mlp", runs("mlp", [1.04], 70))]))
    assert plain(answer(equal).words).startswith("Use none: 2 of 2 ")


def test_two_runs_of_a_cell_that_differ_more_than_the_threshold_raise_it(runs, make_cell, make_sweep):
    noisy = [make_cell("none", runs("none", [1.0, 1.3], 70)), make_cell("mlp", runs("mlp", [1.42, 1.44], 60))]
    quiet = [make_cell("none", runs("none", [1.14, 1.16], 70)), make_cell("mlp", runs("mlp", [1.42, 1.44], 60))]

    found, clear = judge_sweep(make_sweep(noisy)).recommendation, judge_sweep(make_sweep(quiet)).recommendation
    assert (found.cell, clear.cell, clear.noise) == ("mlp", "none", "")
    assert "below 26.1 %" in found.noise


@pytest.mark.parametrize("fate", ["pruned", "illegal"])
def test_without_a_control_cells_are_compared_with_the_fastest_that_ran_which_is_used(judged, fate):
    verdict = judged({"none": {"fate": fate, "reason": "90 GiB"}, "mlp": ([1.1], 60), "core_attn": ([1.0], 70)})

    assert (verdict.cell("mlp").vs_control, " none " in verdict.cell("mlp").not_compared) == (None, True)
    assert (verdict.reference, " none " in verdict.reference_why) == ("core_attn", True)
    assert verdict.cell("mlp").versus.time_change == pytest.approx(0.1)
    assert verdict.cell("mlp").versus.ms_per_gib_saved == pytest.approx(10)
    assert verdict.cell("core_attn").vs_reference is None
    assert not any("not compared" in line for line in remarks(verdict)[0])
    assert verdict.recommendation.cell == "core_attn"
    assert plain(answer(verdict).words).endswith(f"Control none ({fate}).")


def test_a_control_that_can_still_run_is_waited_for(judged):
    verdict = judged({"none": {"fate": "not_run", "reason": "no time"}, "mlp": ([1.1], 60)})
    assert (verdict.reference, verdict.cell("mlp").versus.time_change) == (None, None)


def test_an_unfinished_sweep_recommends_nothing_and_says_how_to_go_on(runs, make_cell, make_sweep):
    cut = runs("core_attn", [1.0], 60, status="interrupted")
    verdict = judge_sweep(make_sweep([
        make_cell("none", runs("none", [1.0], 70)),
        make_cell("mlp", [], fate="not_run", reason="no time"),
        make_cell("core_attn", cut),
    ]))  # fmt: skip

    assert (verdict.recommendation.cell, verdict.num_runs_missing) == (None, 2)
    assert re.fullmatch(r"Unfinished: 2 .*: mbr-perf sweep --resume sweep", plain(answer(verdict).words))


def test_cells_that_did_not_run_keep_their_reason(judged):
    verdict = judged(
        {
            "none": ([1.0], 70),
            "moe": {"fate": "skipped_inert", "reason": "acts on no layer", "same_as": "none"},
            "mlp": {"fate": "pruned", "reason": "90 GiB"},
            "core_attn": {"fate": "not_run", "reason": "no time left"},
            "full:uniform:1": {"fate": "illegal", "reason": "R1"},
        }
    )

    assert [(cell.status, cell.reason) for cell in verdict.cells[1:]] == [
        ("skipped_inert", "acts on no layer"),
        ("pruned", "90 GiB"),
        ("not_run", "no time left"),
        ("illegal", "R1"),
    ]


def test_a_suspect_run_is_kept_out_of_the_answer(judged):
    verdict = judged({"none": ([1.0], 70), "mlp": ([0.5], 60, {"suspect": ("clocks were throttled",)})})

    assert verdict.cell("mlp").doubts == ("suspect: clocks were throttled",)
    assert verdict.pareto == ("none",)
    assert verdict.recommendation.cell == "none"


def test_a_suspect_control_is_no_measure(judged):
    verdict = judged({"none": ([1.0], 70, {"suspect": ("the GPU was shared",)}), "mlp": ([1.1], 60)})

    assert (verdict.cell("mlp").vs_control, " none " in verdict.cell("mlp").not_compared) == (None, True)
    assert verdict.cell("mlp").not_compared.endswith(": suspect: the GPU was shared")


@pytest.mark.parametrize(
    ("where", "doubt"),
    [
        ({"hostname": "node1"}, "host node1, not node0"),
        ({"driver_version": "570.1"}, "driver 570.1, not 550.54.15"),
        ({"device_name": "NVIDIA H200", "hostname": "node1"},
         "device NVIDIA H200, not NVIDIA H100 80GB HBM3; host node1, not node0"),
    ],
)  # fmt: skip
def test_a_cell_measured_on_another_machine_is_in_doubt(runs, make_cell, make_sweep, where, doubt):
    verdict = judge_sweep(make_sweep([
        make_cell("none", runs("none", [1.0, 1.0], 70)),
        make_cell("mlp", [*runs("mlp", [0.5], 60), *runs("mlp", [0.5], 60, provenance=where)]),
    ]))  # fmt: skip

    assert [found.endswith(f": {doubt}") for found in verdict.cell("mlp").doubts] == [True]
    assert (verdict.pareto, verdict.recommendation.cell) == (("none",), "none")


def test_going_on_with_a_sweep_on_another_host_is_warned_of(runs, make_cell, make_sweep):
    data = make_sweep([make_cell("none", []), make_cell("mlp", runs("mlp", [0.5], 60))])

    assert elsewhere(data, "node0") == ""
    assert re.search(r"\bnode0,.* node1: ", elsewhere(data, "node1"))
    assert elsewhere(make_sweep([make_cell("none", [])]), "node1") == ""


def test_a_missing_memory_reading_leaves_the_time_and_says_why(runs, make_cell, make_sweep):
    control, cell = runs("none", [1.0], 70), runs("mlp", [1.1], 60)
    silent = cell[0].ranks[2].model_copy(update={"memory": None})
    cell = [cell[0].model_copy(update={"ranks": (*cell[0].ranks[:2], silent, *cell[0].ranks[3:])})]
    found = judge_sweep(make_sweep([make_cell("none", control), make_cell("mlp", cell)])).cell("mlp")

    assert found.vs_control.memory_saved_bytes is None
    assert any(" rank 2," in doubt for doubt in found.doubts)
    assert found.vs_control.time_change == pytest.approx(0.1)


def test_a_cell_with_twice_the_tokens_is_compared_per_token(judged):
    verdict = judged({"none": ([1.0], 70), "gb=16": ([1.9], 70, {"recompute": "none", "global_batch_size": 16})})
    versus = verdict.cell("gb=16").vs_control

    assert versus.time_rescaled
    assert versus.time_change == pytest.approx(-0.05)


def test_without_a_spec_of_the_control_costs_are_still_for_the_same_tokens(judged):
    verdict = judged(
        {
            "tp=7": {"fate": "illegal", "reason": "P03"},
            "gb=8": ([1.0], 70, {"recompute": "none"}),
            "gb=16": ([1.9], 70, {"recompute": "none", "global_batch_size": 16}),
        }
    )

    assert [cell.cost_s for cell in verdict.cells[1:]] == [1.0, pytest.approx(0.95)]
    assert verdict.recommendation.cell == "gb=16"


def predicted_cell(make_cell, runs, seconds, flops, **changes):
    """A cell whose prediction holds these seconds and FLOPs of the model."""
    prediction = predicted(GIB, model_flops=flops, step_time_s=seconds)
    return make_cell(str(changes), runs("none", [1.0], 70, **changes), prediction=prediction)


@pytest.mark.parametrize(
    ("changes", "seconds", "flops", "overhead"),
    [
        ({"num_gpus": 16}, 0.5, 100, 0.0),
        ({"global_batch_size": 16}, 1.9, 200, -0.05),
        ({"seq_length": 8192}, 2.5, 260, 0.25),
        ({"seq_length": 8192}, None, 260, 0.3),
        ({"num_gpus": 16}, None, 100, 0.0),
    ],
)
def test_a_predicted_change_is_for_the_same_tokens_per_gpu_as_the_measured_one(
    runs, make_cell, make_sweep, changes, seconds, flops, overhead
):
    control = predicted_cell(make_cell, runs, None if seconds is None else 1.0, 100)
    cell = predicted_cell(make_cell, runs, seconds, flops, **changes)

    found = judge_sweep(make_sweep([control, cell])).cell(str(changes)).predicted
    assert found.overhead == pytest.approx(overhead)


def test_without_a_known_memory_every_cell_that_ran_stands(judged):
    verdict = judged({"none": ([1.0], 200, {"gpu": "cpu"})}, capacity_bytes=None)

    assert verdict.cell("none").fits is None
    assert verdict.recommendation.cell == "none"
    assert "memory limit" in verdict.recommendation.why


def test_each_cell_is_held_to_its_own_memory_limit(runs, make_cell, make_sweep):
    cells = [
        make_cell(name, runs("none", [1.0], 3.95, gpu="cpu", memory_limit_bytes=limit))
        for name, limit in (("no limit", None), ("4 GiB", 4 * GIB), ("6 GiB", 6 * GIB))
    ]
    verdict = judge_sweep(make_sweep(cells, capacity_bytes=None))

    assert [cell.fits for cell in verdict.cells] == [None, False, True]
    assert [cell.capacity_bytes for cell in verdict.cells] == [None, 4 * GIB, 6 * GIB]
    assert "2 settings within 3.92 GiB to 5.88 GiB" in verdict.recommendation.why


@pytest.mark.parametrize(
    ("none", "mlp", "repeats"), [((1.0, 1.4), (1.3, 1.7), 4), ((1.0, 1.2, 1.4), (1.3, 1.5, 1.7), 6)]
)
def test_a_setting_measured_slower_is_not_recommended_for_memory_without_a_limit(judged, none, mlp, repeats):
    verdict = judged({"none": (none, 70, {"gpu": "cpu"}), "mlp": (mlp, 60, {"gpu": "cpu"})})
    assert (json_of(verdict)["recommended"], json_of(verdict)["equally_fast"]) == (None, ["none", "mlp"])
    first = plain(answer(verdict).words)
    assert first.startswith("No recommendation: ") and f"--repeats {repeats}" in first and "--memory_limit" in first


def test_what_failed_stands_before_cells_that_did_not_start(judged):
    pruned = {f"mbs{size}": {"fate": "pruned", "reason": f"{size} GiB"} for size in range(90, 96)}
    suspect = {"mlp": ([0.5], 60, {"suspect": ("clocks were throttled",)})}
    shown, others = remarks(judged({"none": ([1.0], 70)} | pruned | suspect))

    assert [line.partition(":")[0] for line in shown] == ["mlp", *(f"mbs{size}" for size in range(90, 95))]
    assert "95 GiB" in others[0]


def test_cells_share_a_remark_whose_line_names_the_first_ones(judged):
    doubtful = {f"mlp{n}": ([0.5], 60, {"recompute": "mlp", "suspect": ("a reason",)}) for n in range(9)}
    shown, _ = remarks(judged({"none": ([1.0], 70)} | doubtful))

    assert [line.partition(":")[0] for line in shown] == ["mlp0; mlp1; and 7 more"]
