"""Runs in MLflow and Weights & Biases: written to stores on this machine, read back with their own libraries."""

import json

import pytest

from tests.commands import REPLAYS

mlflow = pytest.importorskip("mlflow", reason="mbr-perf[export] is not installed")


@pytest.fixture(name="run")
def _run(replay, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert replay("ok").code == 0
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    record = json.loads((folder / "record.json").read_text())
    record["spec"]["env"]["API_TOKEN"] = "hunter2"  # refused today; older records may hold one
    (folder / "record.json").write_text(json.dumps(record))
    return folder


def test_mlflow_has_settings_figures_and_steps_and_a_second_export_adds_nothing(run, mbr_perf, tmp_path):
    store = (tmp_path / "store").as_uri()
    first = mbr_perf("results", "export", run, "--to", "mlflow", "--uri", store, "--json")
    again = mbr_perf("results", "export", run, "--to", "mlflow", "--uri", store)
    client = mlflow.MlflowClient(tracking_uri=store)
    (kept,) = client.search_runs([client.get_experiment_by_name("mbr-perf").experiment_id])
    record = json.loads((run / "record.json").read_text())
    steps = {point.step: point.value for point in client.get_metric_history(kept.info.run_id, "step_seconds")}

    assert json.loads(first.out)["runs"] == [{"run_id": run.name, "tracker_id": kept.info.run_id, "is_new": True}]
    assert again.out == "0 runs sent to mlflow, project mbr-perf; 1 run already there\n"
    assert kept.info.status == "FINISHED"
    assert kept.data.tags["mbr_perf.run_id"] == run.name
    assert kept.data.tags["version.megatron-core"] == record["provenance"]["versions"]["megatron-core"]
    assert kept.data.params["model.num_layers"] == str(record["spec"]["model"]["num_layers"])
    assert kept.data.metrics["peak_allocated_bytes"] > 0
    assert steps == {
        step: max(rank["steps"][step]["seconds"] for rank in record["ranks"])
        for step in range(len(record["ranks"][0]["steps"]))
    }


def test_no_secret_is_exported(run, mbr_perf, tmp_path):
    assert mbr_perf("results", "export", run, "--to", "mlflow", "--uri", (tmp_path / "store").as_uri()).code == 0

    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file() and "hunter2" in path.read_text()]


def test_wandb_keeps_the_run_offline_under_its_own_id(run, mbr_perf, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    done = mbr_perf("results", "export", run, "--to", "wandb")
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")

    assert done.out.endswith("1 run sent to wandb, project mbr-perf\n")
    assert run.name in kept.name
    assert b"peak_allocated_bytes" in kept.read_bytes()
    assert b"hunter2" not in kept.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "mlfow"), "did you mean mlflow?"),
        (("--to", "wandb", "--uri", "http://x"), "--uri is for mlflow"),
    ],
)
def test_a_wrong_destination_is_refused(run, mbr_perf, arguments, message):
    refused = mbr_perf("results", "export", run, *arguments)

    assert refused.code == 2
    assert message in refused.err


def test_a_folder_without_a_finished_run_is_refused(mbr_perf, tmp_path):
    assert mbr_perf("results", "export", REPLAYS / "nothing", "--to", "mlflow").code == 2
