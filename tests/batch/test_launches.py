"""The folders, nodes, software and predictions of the runs of a batch."""

import pytest

from harness.batch.launches import asides, fresh_folder, num_nodes, require_same_software
from harness.errors import BadRequestError
from harness.launch.environment import this_host
from harness.launch.machine import software_for
from harness.measure.prediction import KeptPrediction
from harness.records.prediction import PredictionRecord


@pytest.mark.parametrize(("num_gpus", "per_node", "nodes"), [(1, 8, 1), (8, 8, 1), (16, 8, 2), (2, 1, 2)])
def test_a_run_has_the_nodes_that_its_ranks_need(make_spec, num_gpus, per_node, nodes):
    spec = make_spec(num_gpus=num_gpus, gpus_per_node=per_node, parallelism={})
    assert num_nodes(spec) == nodes


def test_what_a_killed_attempt_left_is_moved_aside_under_the_next_free_number(tmp_path):
    run_dir = tmp_path / "0"
    for _ in range(3):
        (fresh_folder(run_dir) / "left").touch()
    assert [path.name for path in asides(run_dir)] == ["0.incomplete-1", "0.incomplete-2"]
    assert {path.name for path in fresh_folder(run_dir).iterdir()} == {"ranks", "logs"}


def test_other_software_than_at_the_start_is_refused_by_name():
    here = software_for("h100", this_host())[0]
    require_same_software({"h100": here}, this_host(), "night", measures_here=False)
    changed = here.model_copy(update={"megatron_core": "0.1.0"})
    with pytest.raises(BadRequestError, match=r"the night began with megatron_core 0\.1\.0, now") as caught:
        require_same_software({"h100": changed}, this_host(), "night", measures_here=False)
    assert ";" not in caught.value.message.partition("; new runs")[0]


def test_a_prediction_is_made_only_by_a_batch_that_predicts_and_where_none_is_planned(batch):
    recorded = batch("ok")
    (run, _) = recorded.due()
    launch = recorded.launch_of(run, recorded.planned(run).run_dir)
    planned = PredictionRecord(peak_bytes=1, range_bytes=(1, 1), stages=(), model_flops=1, recompute_flops=0)

    def predicted():
        with recorded.prediction(run, launch) as answer:
            return answer(None)

    assert predicted() == KeptPrediction(None, "")
    type(recorded).predicts = True
    try:
        assert predicted().reason
        run.entry.__dict__["prediction"] = planned
        assert predicted() == KeptPrediction(planned, "")
    finally:
        type(recorded).predicts = False
