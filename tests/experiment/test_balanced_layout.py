from itertools import combinations, pairwise

import pytest

from harness.experiment.balanced_layout import balanced_layout
from harness.experiment.flops import end_flops, layer_flops
from harness.experiment.layout_text import parse_layout
from tests.experiment.test_layout import model


def asked(
    make_spec, num_layers: int, pp: int, vp: int | None, mtp: int | None = None, vocab_size: int = 128, gpu="h100"
):
    sizes = {"pipeline_model_parallel_size": pp, "virtual_pipeline_model_parallel_size": vp}
    of_size = model(num_layers, mtp).model_copy(update={"vocab_size": vocab_size})
    return make_spec(model=of_size, gpu=gpu, parallelism=sizes)


def slowest(sizes, pp: int, ends: float) -> float:
    """Return the layers of the slowest rank. ``ends``: MTP layers and loss, in layers."""
    return max(sum(sizes[rank::pp]) + ends * (rank == pp - 1) for rank in range(pp))


@pytest.mark.parametrize(("vocab_size", "gpu"), [(128, "h100"), (1500, "h100"), (1500, "cpu")])
@pytest.mark.parametrize(("pp", "vp", "mtp"), [(2, None, None), (3, None, 1), (4, None, 2), (2, 2, 1), (2, 3, None)])
def test_no_other_layout_has_a_faster_slowest_rank(make_spec, pp, vp, mtp, vocab_size, gpu):
    spec, num_chunks = asked(make_spec, 11, pp, vp, mtp, vocab_size, gpu), pp * (vp or 1)
    ends = (mtp or 0) + sum(end_flops(spec)) / layer_flops(spec, spec.model.layer_kinds[0]).total
    stages = parse_layout(balanced_layout(spec))
    assert (stages[0][0], stages[-1].lstrip("t")) == ("E", "m" * (mtp or 0) + "L")
    found = [stage.count("t") for stage in stages]
    assert (len(found), sum(found), min(found[:-1]) > 0) == (num_chunks, 11, True)
    cuts = ((0, *each, 11) for each in combinations(range(1, 12), num_chunks - 1))
    every = [[last - first for first, last in pairwise(each)] for each in cuts]
    assert slowest(found, pp, ends) == pytest.approx(min(slowest(sizes, pp, ends) for sizes in every), rel=0.01)


@pytest.mark.parametrize(("num_layers", "pp", "vp"), [(8, 2, 2), (8, 1, None), (9, 4, 3)])
def test_megatron_core_splits_evenly_where_it_can_and_where_layers_are_too_few(make_spec, num_layers, pp, vp):
    assert balanced_layout(asked(make_spec, num_layers, pp, vp)) is None
