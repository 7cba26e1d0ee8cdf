from itertools import combinations, pairwise

import pytest

from harness.experiment.balanced_layout import balanced_layout
from harness.experiment.flops import end_flops, layer_flops
from harness.experiment.layout_text import parse_layout
from tests.experiment.test_layout import model

VOCABULARIES = {"light loss": 128, "loss of three layers": 1500}


def slowest(sizes, pp: int, ends: float) -> float:
    """Return the layers of the slowest rank. ``ends``: MTP layers and loss, in layers."""
    return max(sum(sizes[rank::pp]) + ends * (rank == pp - 1) for rank in range(pp))


@pytest.mark.parametrize("vocab_size", VOCABULARIES.values(), ids=VOCABULARIES)
@pytest.mark.parametrize(("pp", "vp", "mtp"), [(2, None, None), (3, None, 1), (4, None, 2), (2, 2, 1), (2, 3, None)])
def test_no_other_layout_has_a_faster_slowest_rank(make_spec, pp, vp, mtp, vocab_size):
    spec = make_spec(model=model(11, mtp).model_copy(update={"vocab_size": vocab_size}), gpu="h100")
    kind, num_chunks = spec.model.layer_kinds[0], pp * (vp or 1)
    ends = (mtp or 0) + sum(end_flops(spec)) / layer_flops(spec, kind).total
    stages = parse_layout(balanced_layout(spec, pp, vp))
    assert (stages[0][0], stages[-1].lstrip("t")) == ("E", "m" * (mtp or 0) + "L")
    found = [stage.count("t") for stage in stages]
    assert (len(found), sum(found), min(found[:-1]) > 0) == (num_chunks, 11, True)
    cuts = ((0, *each, 11) for each in combinations(range(1, 12), num_chunks - 1))
    every = [[last - first for first, last in pairwise(each)] for each in cuts]
    assert slowest(found, pp, ends) == pytest.approx(min(slowest(sizes, pp, ends) for sizes in every), rel=0.01)


@pytest.mark.parametrize(("num_layers", "pp", "vp"), [(8, 2, 2), (8, 1, None), (9, 4, 3)])
def test_megatron_core_splits_evenly_where_it_can_and_where_layers_are_too_few(make_spec, num_layers, pp, vp):
    assert balanced_layout(make_spec(model=model(num_layers), gpu="h100"), pp, vp) is None
