"""Layers moved between stages: as fast as the best of all splits of a small model, legal, and proven."""

from dataclasses import replace
from itertools import product

import pytest

from harness.experiment.effective import settled_implementation
from harness.experiment.layout import chunks
from harness.experiment.layout_text import parse_layout
from harness.predict.prediction import BUILT_IN
from harness.predict.splits import Splits, layout_text
from tests.predict.test_optimal import SOFTWARE, every_plan, planned, replayed, solved, with_budget


def splits(plan, traces):
    return Splits(plan, traces, settled_implementation(plan.spec), SOFTWARE, BUILT_IN)


def flat_of(spec):
    stages = chunks(spec.model, spec.parallelism)
    return tuple(stage[chunk] for chunk in range(len(stages[0])) for stage in stages)


def every_layout(spec):
    """Yield the splits that are searched; of interleaved stages those whose chunks have about as many layers."""
    flat, pp, kinds = flat_of(spec), spec.parallelism.pipeline_model_parallel_size, spec.model.layer_kinds
    for sizes in product(range(len(kinds) + 1), repeat=len(flat)):
        is_first_whole = sum(sizes[:pp]) >= kinds.index(kinds[-1])
        if sum(sizes) == len(kinds) and (len(flat) == pp or (is_first_whole and is_even(flat, sizes, pp))):
            yield layout_text(flat, sizes)


def is_even(flat, sizes, pp):
    of_ranks = [[*zip(flat[rank::pp], sizes[rank::pp], strict=True)] for rank in range(pp)]
    return all(
        any(
            all(least - chunk.has_embedding - chunk.has_loss <= size <= least + 1 for chunk, size in of_rank)
            for least in range(max(sizes) + 1)
        )
        for of_rank in of_ranks
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["two stages", *(pytest.param(name, marks=pytest.mark.long) for name in ("interleaved", "experts", "dense first"))],
)
def test_the_split_equals_brute_force_at_every_budget(name):
    plan, traces = planned(name)
    every = [found for layout in every_layout(plan.spec) for found in every_plan(name, layout)]
    needs = sorted(found.fits[2] for found in every)
    for share in (0.0, 0.1, 0.4, 0.8, 1.0):
        need = needs[int(share * (len(needs) - 1))] + plan.limits.outside_bytes + 2**20
        made = with_budget(plan, need / (1 - plan.limits.margin) / 2**30)
        fitting = [*(found for found in every if found.fits[2] <= made.limits.budget_bytes), *replayed(made)]
        best = min(found.time.likely_s for found in fitting)
        answer = splits(made, traces).best(solved(made, traces))
        assert answer.row.verdict == "FITS"
        assert answer.row.prediction.time.likely_s == pytest.approx(best, rel=1e-9)
        # Of "experts", a stage that recomputes for nothing would exchange less beside its passes, if it could.
        assert best * (1 - 2e-3 * (name == "experts") - 1e-6) <= answer.split_bound <= best * (1 + 1e-9)
        assert answer.bound == min(answer.split_bound, answer.bound) and not answer.split_reason
        if answer.layout:
            assert answer.row.candidate.spec.parallelism.pipeline_model_parallel_layout == answer.layout


@pytest.mark.slow
def test_nothing_is_proven_where_the_time_limit_ends_the_search_of_splits():
    plan, traces = planned("two stages")
    made = with_budget(plan, 1e3)
    of_request = solved(made, traces)
    assert of_request.is_proven
    ended = replace(splits(made, traces), most_s=0.0).best(of_request)
    assert (ended.is_proven, bool(ended.split_reason)) == (False, True)
    assert ended.bound == ended.split_bound < ended.seconds == of_request.seconds


@pytest.mark.slow
def test_splits_that_cannot_be_searched_have_no_bound():
    plan, traces = planned("dense first")
    of_request = solved(with_budget(plan, 1e3), traces)
    moe = plan.spec.model.moe.model_copy(update={"moe_layer_freq": (0, 1, 0, 1)})
    in_turn = plan.spec.model_copy(update={"model": plan.spec.model.model_copy(update={"moe": moe})})
    for made, known in ((replace(plan, spec=in_turn), traces), (plan, replace(traces, even={}))):
        answer = splits(made, known).best(of_request)
        assert (answer.split_bound, bool(answer.split_reason), answer.is_proven) == (0, True, False)
        assert (answer.row, answer.bound) == (of_request.row, of_request.bound)


@pytest.mark.slow
def test_a_split_is_written_as_megatron_core_reads_it():
    flat = flat_of(planned("interleaved")[0].spec)
    for sizes in ((1, 1, 1, 1), (2, 0, 2, 0), (0, 0, 0, 4), (3, 1, 0, 0)):
        assert [each.count("t") for each in parse_layout(layout_text(flat, sizes))] == list(sizes)
    assert layout_text(flat, (1, 1, 1, 1)) == "Et|(t|)*2tL"


def test_layers_move_only_for_a_plan_by_layer(mbr_perf):
    done = mbr_perf("plan", "-mr", "llama3_8b", "-g", "cpu", "--layers_too")
    assert (done.code, "--optimal" in done.err) == (2, True)
