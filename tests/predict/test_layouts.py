"""Which layouts a search tries, and that its bounds never exceed what is predicted."""

import pytest

from harness.experiment.layout_text import parse_layout, write_layout
from harness.experiment.software import Software
from harness.predict.layouts import Sizes, Space, least_seconds
from harness.predict.model_states import least_bytes
from harness.predict.prediction import predict
from harness.predict.shipped_traces import find_shipped
from harness.predict.stages import Composer
from tests.real_te.shipped_points import IMPLEMENTATION, SOFTWARE, shipped_points


@pytest.fixture(name="specs", scope="module")
def _specs():
    points = [point for point in shipped_points() if point.gpu == "h100" and point.spec and not point.refused]
    return {point.name: point.spec for point in points}


def space(spec, num_gpus: int, batch: int, **pinned) -> Space:
    sized = spec.batch.model_copy(update={"global_batch_size": batch})
    return Space(spec.model_copy(update={"num_gpus": num_gpus, "batch": sized}), pinned)


def test_sizes_divide_gpus_batch_heads_and_layers(specs):
    found = space(specs["llama3_70b"], 64, 128)
    layouts = list(found.sizes())
    assert len(layouts) == len(set(layouts)) > 200
    for sizes in layouts:
        copies = 64 // (sizes.tp * sizes.pp * sizes.cp)
        assert copies * sizes.tp * sizes.pp * sizes.cp == 64
        assert 128 % (copies * sizes.mb) == 0
        assert 64 % sizes.tp == 0 and sizes.tp <= 8
        assert 80 % (sizes.pp * (sizes.vp or 1)) == 0
        assert (sizes.ep, sizes.et) == (None, None)
    assert {sizes.pp for sizes in layouts} == {1, 2, 4, 8, 16}


def test_experts_are_spread_over_all_ranks_of_a_stage(specs):
    layouts = list(space(specs["qwen3_30b_a3b"], 16, 256, mb=1, cp=1).sizes())
    assert {sizes.ep for sizes in layouts} == {1, 2, 4, 8, 16}
    assert all(16 % (sizes.pp * sizes.ep * sizes.et) == 0 for sizes in layouts)
    assert {sizes.et for sizes in layouts if sizes.tp == 4} == {1, 4}


def test_given_sizes_stay(specs):
    layouts = list(space(specs["llama3_70b"], 64, 128, tp=4, mb=2, vp=None).sizes())
    assert {(sizes.tp, sizes.mb, sizes.vp) for sizes in layouts} == {(4, 2, None)}
    assert len(layouts) > 5


@pytest.mark.parametrize(("pp", "vp"), [(2, None), (4, 2), (8, None), (16, 2), (16, None), (8, 4)])
def test_no_layer_should_move_from_a_stage_of_a_layout_to_another(specs, pp, vp):
    spec = specs["deepseek_v3"]
    settings = dict(each.split("=", 1) for each in space(spec, 1024, 2048).settings(Sizes(2, pp, vp, 1, 64, 1, 1)))
    stages = parse_layout(settings["parallelism.pipeline_model_parallel_layout"])
    assert "".join(stages).count("t") == spec.model.num_layers == 61 and stages[-1].endswith("mL")
    seconds = step_seconds(spec, pp, stages)
    for first, last in ((0, -1), (-1, 0), (0, 1), (1, 0)):
        moved = [*stages]
        moved[first] = moved[first].replace("t", "", 1)
        moved[last] = moved[last].replace("m", "tm") if "m" in moved[last] else moved[last] + "t"
        assert stages[first].count("t") < 2 or step_seconds(spec, pp, moved) > 0.99 * seconds, (first, last)


def step_seconds(spec, pp, stages):
    cut = {"pipeline_model_parallel_size": pp, "virtual_pipeline_model_parallel_size": None}
    cut["pipeline_model_parallel_layout"] = write_layout(stages)
    return predicted(spec.model_copy(update={"parallelism": spec.parallelism.model_copy(update=cut)})).time.likely_s


@pytest.mark.parametrize(
    ("name", "tp", "own", "setting"),
    [
        ("llama3_70b", 1, True, "parallelism.sequence_parallel=false"),
        ("llama3_70b", 4, True, None),
        ("llama3_70b", 4, False, None),
        ("llama3_8b", 1, False, None),
        ("llama3_8b", 4, False, "parallelism.sequence_parallel=true"),
    ],
)
def test_sequence_parallelism_follows_tp_only_where_a_recipe_says_nothing_of_it(specs, name, tp, own, setting):
    spec = specs[name]
    spec = spec.model_copy(update={"parallelism": spec.parallelism.model_copy(
        update={"sequence_parallel": own, "tensor_model_parallel_size": 4 if name == "llama3_70b" else 1})})  # fmt: skip
    settings = space(spec, 64, 128).settings(Sizes(tp, 4, None, 2, None, None, 1))
    assert [each for each in settings if "sequence" in each] == ([setting] if setting else [])


@pytest.mark.parametrize("name", ["llama3_70b", "llama3_8b", "deepseek_v3", "qwen3_30b_a3b", "llama31_405b"])
def test_bounds_do_not_exceed_predictions(specs, name):
    spec = specs[name]
    found = predicted(spec)
    assert 0 < least_bytes(spec) < found.peak_bytes
    assert 0 < least_seconds(spec) < found.time.range_s[0]
    assert least_bytes(spec) > found.peak_bytes / 20


def predicted(spec):
    shipped, reason = find_shipped("0.16.1", Software())
    assert shipped, reason
    composer = Composer(spec, IMPLEMENTATION)
    found = {case.key: shipped.read(case, 1.0) for case in composer.cases()}
    traces = {key: trace.chunk for key, trace in found.items() if trace and trace.chunk}
    return predict(spec, IMPLEMENTATION, traces, None, SOFTWARE)
