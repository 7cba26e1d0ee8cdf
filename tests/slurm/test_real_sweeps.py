"""Sweeps and nights on a real Slurm: by one job on two nodes, and by one job per case."""

import json
import signal

import pytest

from harness.records.night import read_night
from harness.records.sweep import read_sweep

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.long]
SUITE = """
title: Two small cases
defaults:
  timeout: 120
  repeats: 2
  request: {model_recipe_name: llama3_8b, gpu: cpu, max_steps: 3, eval_time_start_step: 1, num_layers: 2, seq_length: 64}
cases:
  - {name: fits, golden: optional, request: {recompute: none}}
  - name: does_not
    request: {recompute: none, memory_limit: 0.001, eval_time_start_step: 2}
    expected: {outcome: oom, until: "2099-12-31", reason: it is not to fit}
"""


def sweep(results, *more):
    words = [word for word in results.run("-ms", "3") if word != "run"]
    return ("sweep", *words, "--over", "recompute=none; mlp", *more)


def test_one_job_runs_a_sweep_on_two_nodes(slurm, results):
    done = slurm.mbr_perf(*sweep(results, "--json"))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [(cell["recompute"], cell["status"]) for cell in answer["cells"]] == [("none", "ok"), ("mlp", "ok")]
    assert (results.jobs[0] / "job.json").is_file() and len(results.jobs) == 1
    assert slurm.ended(results.job_id())["JobState"] == "COMPLETED"
    [run, _] = [run for cell in read_sweep(answer["sweep_dir"]).cells for run in cell.runs]
    assert [rank.finished for rank in run.ranks] == [True, True]


def test_a_detached_sweep_is_collected_later(slurm, results):
    detached = slurm.mbr_perf(*sweep(results, "--repeats", "2", "--detach"))
    assert detached.returncode == 0, detached.stderr
    [sweep_dir] = (results.folder / "sweeps").iterdir()
    early = slurm.mbr_perf("sweep", "--resume", sweep_dir)
    assert (early.returncode, "at work" in early.stderr) == (2, True)
    waited = slurm.mbr_perf("jobs", "wait", results.jobs[0], "--json")
    assert waited.returncode == 0, waited.stderr
    resumed = slurm.mbr_perf("sweep", "--resume", sweep_dir, "--json")
    assert resumed.returncode == 0, resumed.stderr
    cells = json.loads(resumed.stdout)["cells"]
    assert [(cell["status"], cell["num_runs"]) for cell in cells] == [("ok", 2)] * 2
    assert cells == json.loads(waited.stdout)["cells"]


def test_what_a_cancelled_job_did_not_do_a_second_job_does(slurm, results):
    assert slurm.mbr_perf(*sweep(results, "--detach")).returncode == 0
    slurm.mbr_perf("jobs", "cancel", results.jobs[0])
    slurm.mbr_perf("jobs", "wait", results.jobs[0])
    [sweep_dir] = (results.folder / "sweeps").iterdir()
    again = slurm.mbr_perf("sweep", "--resume", sweep_dir, "--launcher", "slurm", "--time_limit", "20", "--json")
    assert again.returncode == 0, again.stderr
    assert [cell["status"] for cell in json.loads(again.stdout)["cells"]] == ["ok", "ok"]
    assert len(results.jobs) == 2


def test_a_night_is_a_job_per_case(slurm, results, tmp_path):
    suite = tmp_path / "two.yaml"
    suite.write_text(SUITE)
    done = slurm.mbr_perf("nightly", suite, "--launcher", "slurm", "--time_limit", "20", *results.option, "--json")
    answer = json.loads(done.stdout)
    cases = {case["name"]: case for case in answer["cases"]}
    assert (cases["fits"]["outcome"], cases["does_not"]["outcome"]) == ("pass", "oom"), done.stderr
    assert (done.returncode, cases["does_not"]["is_expected"]) == (0, True)
    assert len(results.jobs) == 2
    runs = {
        case.planned.name: [run.record.status for run in case.runs] for case in read_night(answer["night_dir"]).cases
    }
    assert runs == {"fits": ["ok", "ok"], "does_not": ["oom"]}


def begun_night(slurm, results, suite, eventually):
    """A night whose first job trains; the process that waits for it, its folder and that of the first case's run."""
    text = SUITE.replace("max_steps: 3", "max_steps: 80").replace("repeats: 2", "repeats: 1")
    suite.write_text(text)
    waiting = slurm.begin(
        "nightly", suite, "--only", "fits", "--launcher", "slurm", "--time_limit", "20", *results.option
    )
    trains = eventually(lambda: list(results.folder.glob("nights/*/cases/fits/0/ranks/rank_*.jsonl")), "a job at work")
    return waiting, trains[0].parents[4], trains[0].parents[1]


def test_a_night_whose_process_was_killed_takes_up_its_jobs_again(slurm, results, tmp_path, eventually):
    waiting, night_dir, run_dir = begun_night(slurm, results, tmp_path / "two.yaml", eventually)
    with waiting:
        waiting.kill()
    assert not (run_dir / "record.json").exists()
    done = slurm.mbr_perf("nightly", "--resume", night_dir, *results.option, "--json")
    assert done.returncode == 0, done.stderr
    assert [case["outcome"] for case in json.loads(done.stdout)["cases"]] == ["pass"]
    assert len(results.jobs) == 1
    assert [run.record.status for case in read_night(night_dir).cases for run in case.runs] == ["ok"]


def test_an_interrupted_night_cancels_its_jobs_and_is_resumed_by_new_ones(slurm, results, tmp_path, eventually):
    waiting, night_dir, run_dir = begun_night(slurm, results, tmp_path / "two.yaml", eventually)
    with waiting:
        waiting.send_signal(signal.SIGTERM)
        waiting.communicate(timeout=120)
    assert waiting.returncode == 143
    assert slurm.ended(results.job_id())["JobState"] == "CANCELLED"
    assert (run_dir / "record.json").is_file()
    done = slurm.mbr_perf("nightly", "--resume", night_dir, *results.option, "--json")
    assert done.returncode == 0, done.stderr
    assert [case["outcome"] for case in json.loads(done.stdout)["cases"]] == ["pass"]
    assert len(results.jobs) == 2
