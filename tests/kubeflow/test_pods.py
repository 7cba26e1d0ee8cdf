"""Pods that really run, on this machine: `--launcher kubeflow` from the TrainJob to the verdict."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from harness.nightly.outcome import infrastructure_fault
from harness.records.golden import golden_text
from harness.records.goldens import read_golden
from harness.records.job import read_job
from harness.records.store import read_run
from harness.records.sweep import read_sweep
from tests.kubeflow.conftest import IMAGE, RECIPE, pod
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("impatient"), pytest.mark.train, pytest.mark.slow]


def test_pods_train_commit_and_are_judged(api, run_job, job_dir):
    api.runs_pods = True
    answer = run_job("-ms", "3", "--json", "--slurm_python", sys.executable, *IMAGE)
    assert answer.code == 0, answer.err
    job = read_job(job_dir())
    record = read_run(job.runs[0].run_dir)
    assert (json.loads(answer.out)["outcome"], record.provenance.job_id) == ("pass", job.name)
    assert list(Path(job.job_dir, "logs").iterdir())
    assert [[step.step for step in rank.steps] for rank in record.ranks] == [[0, 1, 2], [0, 1, 2]]
    assert f"Kubernetes job {job.name} on machine-0" in record.notes


def test_what_a_cancelled_job_measured_is_kept(api, run_job, job_dir, mbr_perf):
    """Kubernetes has deleted the TrainJob for seconds before the ranks hear of it."""
    api.runs_pods, api.sigterm_after_s = True, 3.0
    run_job("-ms", "100000", "--detach", "--slurm_python", sys.executable, *IMAGE)
    run_dir = Path(read_job(job_dir()).runs[0].run_dir)
    assert wait_until(lambda: any(path.stat().st_size > 3000 for path in run_dir.glob("ranks/*progress*")), 60.0)
    assert mbr_perf("jobs", "cancel", job_dir()).code == 0
    assert mbr_perf("jobs", "wait", job_dir()).code == 130
    record = read_run(run_dir)
    assert (record.status, all(rank.steps for rank in record.ranks)) == ("interrupted", True)
    assert record.notes[-1].startswith("Kubernetes job ")  # node 0 committed it, not the one that waited


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_pod_that_kubernetes_starts_again_runs_nothing_and_says_so(api, run_job, job_dir, mbr_perf, is_deleted):
    api.runs_pods = True
    run_job("-ms", "100000", "--detach", "--slurm_python", sys.executable, *IMAGE)
    job = read_job(job_dir())
    run_dir, trainer = Path(job.runs[0].run_dir), api.jobs[job.name]["spec"]["trainer"]
    assert wait_until((run_dir / "meeting.json").exists, 60.0)
    api.stop()  # the nodes are lost, the further one before it began
    api.processes.clear()
    for left in ("ranks", "logs"):
        shutil.rmtree(run_dir / left, ignore_errors=True)
    (run_dir / "node_001.txt").unlink(missing_ok=True)
    api.pods["p"] = pod(lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}})
    (run_dir / "logs").mkdir()
    (run_dir / "ranks").mkdir()
    api.start(trainer, ranks=[1], machine="other")
    assert wait_until((run_dir / "logs" / "launcher_node_001.log").exists, 60.0)  # its ranks wait for the lost node
    api.start(trainer, ranks=[0], machine="other")
    if is_deleted:
        assert wait_until(lambda: len(list(Path(job.job_dir, "attempts").glob("*.json"))) == 2, 60.0)
        api.stop()
        _ = [gone.clear() for gone in (api.jobs, api.pods, api.processes)]
    assert mbr_perf("jobs", "wait", job_dir()).code == 3
    record = read_run(run_dir)
    cause = "cause unknown: the TrainJob was deleted" if is_deleted else "OOMKilled, exit code 137): "
    assert record.failure.startswith(f"Kubernetes: RESTARTED ({cause}")
    assert all(f" on {machine}-0" in record.failure for machine in ("machine", "other"))
    assert (record.status, bool(infrastructure_fault(record))) == ("failed", is_deleted)  # else its own memory


def test_a_further_pod_that_starts_again_elsewhere_is_named_by_the_first(api, run_job, job_dir, mbr_perf):
    api.runs_pods = True
    run_job("-ms", "100000", "--detach", "--slurm_python", sys.executable, *IMAGE)
    job = read_job(job_dir())
    run_dir = Path(job.runs[0].run_dir)
    assert wait_until(lambda: any(path.stat().st_size > 3000 for path in run_dir.glob("ranks/*progress*")), 60.0)
    os.killpg(api.processes[1].pid, signal.SIGKILL)
    api.start(api.jobs[job.name]["spec"]["trainer"], ranks=[1], machine="other")
    assert mbr_perf("jobs", "wait", job_dir()).code == 3
    record = read_run(run_dir)
    assert "RESTARTED on other-1: node 1 already began this run on machine-1" in record.failure
    assert infrastructure_fault(record).id == "kubernetes_restarted"
    assert any(rank.steps for rank in record.ranks)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_pod_that_starts_again_ends_a_sweep_or_one_of_its_runs_by_name(api, run_job, job_dir, mbr_perf, rank):
    api.runs_pods = True
    over = ("--over", "recompute=none; mlp", "-ms", "600", "--detach", "--slurm_python", sys.executable, *IMAGE)
    run_job(*over, command="sweep")
    job = read_job(job_dir())
    folder = Path(job.subject)
    assert wait_until(lambda: any(path.stat().st_size > 3000 for path in folder.glob("*/*/*/ranks/*progress*")), 60.0)
    os.killpg(api.processes[rank].pid, signal.SIGKILL)
    api.start(api.jobs[job.name]["spec"]["trainer"], ranks=[rank], machine="other")
    answer = mbr_perf("jobs", "wait", job_dir())
    found = [(run.status, "RESTARTED on other-1" in (run.failure or "")) for run in runs_of_sweep(folder)]
    assert (answer.code, found) == ((3, [("failed", True), ("ok", False)]) if rank else (6, []))
    assert rank or "Kubernetes: RESTARTED" in answer.err


def runs_of_sweep(folder):
    return [run for cell in read_sweep(folder).cells for run in cell.runs]


@pytest.mark.long
def test_before_the_time_limit_the_ranks_end_and_keep_what_they_measured(api, run_job, job_dir):
    api.runs_pods = True
    answer = run_job("-ms", "100000", "--time_limit", "1", "--slurm_python", sys.executable, *IMAGE)
    record = read_run(read_job(job_dir()).runs[0].run_dir)
    assert (answer.code, record.failure.startswith("Kubernetes: TIMEOUT: ")) == (3, True)
    assert all(rank.steps for rank in record.ranks)


@pytest.mark.long
def test_a_night_confirms_on_other_nodes(api, mbr_perf, tmp_path, results):
    api.runs_pods, goldens = True, tmp_path / "goldens"
    goldens.mkdir()
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        f"title: One\ndefaults: {{golden: optional, request: {{model_recipe_name: {RECIPE}, gpu: cpu, "
        "gpus_per_node: 1, max_steps: 20}}\ncases: [{name: only}]\n"
    )
    where = ("--launcher", "kubeflow", "--kubeflow_namespace", "team", "-t", "10", *IMAGE)
    asked = (*where, "--slurm_python", sys.executable, "--retries", "0", "--confirm", "1")
    night = ("nightly", suite, *asked, "--results_dir", results, "--golden_dir", goldens, "--json")
    first = json.loads(mbr_perf(*night).out)
    run_dir = first["cases"][0]["runs"][0]["run_dir"]
    promote = ("golden", "promote", run_dir, "--reason", "x", "--golden_dir", goldens, "--accept_spread")
    assert mbr_perf(*promote, "--results_dir", results).code == 0
    (path,) = goldens.glob("*/*.json")
    golden = read_golden(path)
    faster = {name: each.model_copy(update={"value": each.value * 3}) for name, each in golden.metrics.items()}
    path.write_text(golden_text(golden.model_copy(update={"metrics": faster, "digest": None})))
    answer = mbr_perf(*night)
    before, confirming = (json.dumps(job) for job in list(api.jobs.values())[-2:])
    named = [[f'"NotIn", "values": ["machine-{rank}"]' in body for rank in (0, 1)] for body in (before, confirming)]
    assert (answer.code, named) == (5, [[False, False], [True, True]])
