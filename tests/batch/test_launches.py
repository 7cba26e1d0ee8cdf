"""The folders, nodes, software and predictions of the runs of a batch; one process works in a folder, which must be writable."""

import errno
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.batch.engine import _not_writable, holding
from harness.batch.launches import fresh_folder, make_folder, require_same_software
from harness.errors import BadRequestError, RunFailedError
from harness.experiment.rules.rule import Finding
from harness.experiment.software import Software
from harness.launch.environment import this_host
from harness.launch.machine import software_for
from harness.launch.processes import is_held
from harness.measure.prediction import KeptPrediction
from harness.records.prediction import PredictionRecord


@pytest.mark.parametrize(("num_gpus", "per_node", "nodes"), [(1, 8, 1), (8, 8, 1), (16, 8, 2), (2, 1, 2)])
def test_a_run_has_the_nodes_that_its_ranks_need(make_spec, num_gpus, per_node, nodes):
    assert make_spec(num_gpus=num_gpus, gpus_per_node=per_node, parallelism={}).num_nodes == nodes


def test_what_a_killed_attempt_left_is_moved_aside_under_the_next_free_number(tmp_path):
    run_dir = tmp_path / "0"
    for _ in range(3):
        (fresh_folder(run_dir) / "left").touch()
    make_folder(run_dir)
    assert (run_dir / "left").exists()
    assert sorted(path.name for path in tmp_path.glob("*-*")) == ["0.incomplete-1", "0.incomplete-2"]
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
    planned = PredictionRecord(peak_bytes=1, range_bytes=(1, 1), stages=(), model_flops=1, recompute_flops=0)

    assert recorded.prediction(run) == KeptPrediction(None, "")
    type(recorded).predicts = True
    try:
        assert recorded.prediction(run) is None
        run.entry.__dict__["prediction"] = planned
        assert recorded.prediction(run) == KeptPrediction(planned, "")
    finally:
        type(recorded).predicts = False


def test_a_run_is_judged_again_only_where_its_entry_was_not_judged_for_known_software(batch):
    recorded = batch("ok")
    (run, _) = recorded.due()
    kept = (Finding(id="X", severity="warning", message="kept", fix=""),)
    run.entry.__dict__["findings"] = kept
    planned = recorded.planned(run)
    understood = recorded.understood(run, planned.run_dir)
    assert (understood.findings, understood.launch.nodes.node_rank) == (kept, 0)
    recorded.planned = lambda _: replace(planned, software=None)
    again = recorded.understood(run, planned.run_dir)
    assert "X" not in {finding.id for finding in again.findings}
    assert again.software == Software()


def test_a_run_shows_its_phase_and_step_under_its_title(batch):
    recorded, shown = batch("ok"), []
    (run, _) = recorded.due()
    progress = SimpleNamespace(start=lambda *begun: shown.append(begun) or (lambda *now: shown.append(now)))
    with recorded.following(run, progress) as show:
        for phase in (None, "step"):
            show(SimpleNamespace(phase=phase, step=3, last_step_s=0.5, eta_s=1.0))
    assert shown == [("ok", 8), ("start", 3, 0.5, 1.0), ("step", 3, 0.5, 1.0)]


def test_a_folder_in_which_nothing_can_be_written_is_refused_with_the_reason(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(BadRequestError, match="sweep: Is a directory"), holding(tmp_path, "sweep"):
        pass


def test_a_second_worker_is_refused(tmp_path):
    with (
        holding(tmp_path, "sweep"),
        pytest.raises(BadRequestError, match="still running"),
        holding(tmp_path, "sweep"),
    ):
        pass


def test_a_folder_is_held_until_its_work_ends_and_other_nodes_see_both(tmp_path):
    with holding(tmp_path, "sweep"):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_stops_a_night_with_the_command_that_continues_it(tmp_path):
    with pytest.raises(RunFailedError, match="disk full: ") as caught, holding(tmp_path, "night"):
        raise FULL
    assert caught.value.remedy.endswith(f": mbr-perf nightly --resume {tmp_path}")


def test_a_folder_on_a_full_disk_needs_space_not_permissions(tmp_path):
    full = _not_writable(tmp_path, "sweep", FULL)
    assert isinstance(full, RunFailedError)
    assert full.remedy.startswith("free space")


def test_a_deleted_folder_is_not_to_be_resumed(tmp_path):
    with pytest.raises(RunFailedError, match="was deleted") as caught, holding(tmp_path, "night"):
        _read_after_deletion(tmp_path)
    assert "--resume" not in caught.value.remedy


def _read_after_deletion(folder):
    shutil.rmtree(folder)
    (folder / "night.json").read_text()
