"""Layers moved between stages: as fast as the best of all splits of a small model, legal, and not below the bound."""

from dataclasses import replace

import pytest

from harness.experiment.effective import settled_implementation
from harness.experiment.layout import chunks
from harness.experiment.layout_text import parse_layout
from harness.predict.prediction import BUILT_IN
from harness.predict.splits import Splits, layout_text
from tests.predict.test_optimal import SOFTWARE, planned, solved, with_budget


def splits(plan, traces):
    return Splits(plan, traces, settled_implementation(plan.spec), SOFTWARE, BUILT_IN)


@pytest.mark.slow
def test_the_split_is_the_best_of_all_splits_of_a_small_model():
    plan, traces = planned("two stages")
    highest, outside = plan.control.prediction.fits[2], plan.limits.outside_bytes
    made = with_budget(plan, (highest * 0.97 + outside) / (1 - plan.limits.margin) / 2**30)
    of_request = solved(made, traces)
    found = splits(made, traces).best(of_request)
    every = {}
    for first in range(5):
        text = "|".join(("E" + "t" * first, "t" * (4 - first) + "L"))
        parallelism = plan.spec.parallelism.model_copy(update={"pipeline_model_parallel_layout": text})
        spec = made.spec.model_copy(update={"parallelism": parallelism})
        every[text] = solved(replace(made, spec=spec), traces)
    fastest = min((each.seconds for each in every.values() if each.row), default=None)
    assert found.seconds == pytest.approx(fastest, rel=1e-9)
    assert found.seconds <= of_request.seconds
    assert found.split_bound <= fastest
    assert found.best_uniform == of_request.best_uniform
    if found.layout:
        assert (
            sum(len(chunk.layers) for stage in chunks(made.spec.model, made.spec.parallelism) for chunk in stage) == 4
        )
        assert found.row.candidate.spec.parallelism.pipeline_model_parallel_layout == found.layout


@pytest.mark.slow
def test_a_split_is_written_as_megatron_core_reads_it():
    plan, _ = planned("interleaved")
    flat = tuple(stage[chunk] for chunk in range(2) for stage in chunks(plan.spec.model, plan.spec.parallelism))
    for sizes in ((1, 1, 1, 1), (2, 0, 2, 0), (0, 0, 0, 4), (3, 1, 0, 0)):
        assert [each.count("t") for each in parse_layout(layout_text(flat, sizes))] == list(sizes)
    assert layout_text(flat, (1, 1, 1, 1)) == "Et|(t|)*2tL"


def test_layers_move_only_for_a_plan_by_layer(mbr_perf):
    done = mbr_perf("plan", "-mr", "llama3_8b", "-g", "cpu", "--layers_too")
    assert (done.code, "--optimal" in done.err) == (2, True)


@pytest.mark.slow
def test_with_enough_memory_the_bound_of_all_splits_is_what_the_best_one_takes():
    plan, traces = planned("two stages")
    made = with_budget(plan, 500)
    found = splits(made, traces).best(solved(made, traces))
    exchanged = found.row.prediction.time.reduction_s + found.row.prediction.time.optimizer_s
    assert found.split_bound <= found.seconds <= found.split_bound + exchanged
