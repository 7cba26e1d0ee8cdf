"""`nightly --launcher slurm` with Slurm's commands answered by scripts; real Slurm has its own tests."""

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("impatient")
ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "tests" / "data" / "replay" / "replayed.yaml"
RECORDED = ROOT / "tests" / "data" / "slurm" / "said"


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def nightly(mbr_perf, results, tmp_path):
    """`mbr-perf nightly` on Slurm: two cases of one run each, and no retries."""
    cases = "cases: [{name: first}, {name: second, request: {recompute: none}}]"
    asked = f"defaults: {{golden: optional, request: {{model_recipe_name: {RECIPE}, gpu: cpu}}}}"
    (tmp_path / "suite.yaml").write_text(f"title: Two\n{asked}\n{cases}\n")

    def run(*arguments):
        limits = ("--launcher", "slurm", "--time_limit", "10", "--retries", "0")
        asked = arguments if "--resume" in arguments else (tmp_path / "suite.yaml", *limits, *arguments)
        return mbr_perf("nightly", *asked, "--results_dir", results, "--json")

    return run


def test_a_night_goes_on_after_a_submission_that_nobody_knows_the_end_of(nightly, slurm):
    slurm.answers("sbatch", 'case "$*" in *-first-*) ;; *) echo 7 ;; esac')
    slurm.reports("nodefail")
    answered = nightly()
    answer = json.loads(answered.out)
    assert {case["name"]: case["outcome"] for case in answer["cases"]} == {"first": "inconclusive", "second": "failed"}
    assert (answered.code, answer["num_runs_missing"], len(slurm.submissions())) == (3, 1, 2)
    assert "first: sbatch printed ''" in answered.err


def test_a_job_of_a_night_that_was_cancelled_by_hand_fails_its_case_and_is_not_submitted_again(nightly, slurm):
    slurm.answers("sbatch", 'case "$*" in *-first-*) echo 13 ;; *) echo 7 ;; esac')
    slurm.answers(
        "scontrol",
        f'case "$*" in *13*) cat {RECORDED}/cancelled.scontrol ;; *) cat {RECORDED}/nodefail.scontrol ;; esac',
    )
    answered = nightly()
    answer = json.loads(answered.out)
    cases = {case["name"]: case for case in answer["cases"]}
    assert (answered.code, len(slurm.submissions())) == (3, 2)
    assert cases["first"]["outcome"] == "failed"
    assert cases["first"]["reason"] == "run 0: Slurm: CANCELLED by hand (job 13)"
    assert not cases["first"]["is_infrastructure"]
    assert re.search(
        rf"first: Slurm: CANCELLED .* 13\); .*mbr-perf nightly --resume {answer['night_dir']}", answered.err
    )


REFUSED = "echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1"


def test_a_partition_that_slurm_does_not_know_ends_the_night_before_anything_is_written(nightly, slurm, results):
    slurm.answers("sbatch", REFUSED)
    answered = nightly("--partition", "nope")
    assert (answered.code, slurm.submissions(), results.exists()) == (2, [], False)
    assert ": invalid partition specified: nope" in answered.err


def test_an_account_that_only_the_submission_finds_wrong_ends_the_night_without_failed_runs(nightly, slurm, results):
    refusal = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    slurm.answers("sbatch", f'case "$*" in *--test-only*) ;; *) echo "{refusal}" >&2; exit 1 ;; esac')
    answer = nightly("--account", "nope")
    assert (answer.code, len(slurm.submissions()), list(results.glob("nights/*/cases/*/*"))) == (2, 1, [])
    [night_dir] = (results / "nights").iterdir()
    slurm.answers("sbatch", "echo 7")
    slurm.reports("nodefail")
    assert nightly("--resume", night_dir).code == 3


def test_a_resumed_night_submits_what_was_cancelled_by_hand_with_the_reason(nightly, slurm):
    slurm.reports("cancelled")
    night_dir = json.loads(nightly("--only", "first").out)["night_dir"]
    slurm.reports("nodefail")
    answer = json.loads(nightly("--resume", night_dir).out)
    assert [case["reason"] for case in answer["cases"]] == [
        "run 0: infrastructure (Slurm node lost): Slurm: NODE_FAIL (NodeDown) on n2"
    ]
    events = [json.loads(line) for line in Path(night_dir, "events.jsonl").read_text().splitlines()]
    assert [(event["kind"], event["reason"]) for event in events] == [
        ("started", ""),
        ("cancelled", "Slurm: CANCELLED by hand (job 7)"),
        ("started", events[2]["reason"]),
        ("finished", ""),
    ]
    assert events[2]["reason"].endswith(f": {events[1]['reason']}")


def test_a_night_takes_up_a_job_that_slurm_took_without_saying_so(nightly, slurm, results):
    late = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    slurm.answers("sbatch", f'case "$*" in *--test-only*) ;; *) echo "{late}" >&2; exit 1 ;; esac')
    slurm.answers("squeue", f'for script in {results}/jobs/*/job.sbatch; do echo "9|$script"; done')
    slurm.reports("nodefail")
    answer = json.loads(nightly("--only", "first").out)
    assert answer["cases"][0]["reason"].startswith("run 0: infrastructure (Slurm node lost)")
    assert len(slurm.submissions()) == 1


def test_an_unreadable_job_of_others_stops_no_night(nightly, slurm, results):
    (results / "jobs" / "theirs").mkdir(parents=True)
    (results / "jobs" / "theirs" / "job.json").write_text("{")
    slurm.reports("nodefail")
    assert (nightly("--only", "first").code, len(slurm.submissions())) == (3, 1)


def test_a_dry_run_prints_the_batch_file_of_every_case(nightly, slurm, results):
    jobs = json.loads(nightly("--dryrun", "--partition", "batch").out)["jobs"]
    assert [[Path(run).name for run in job["runs"]] for job in jobs] == [["0"], ["0"]]
    assert all("#SBATCH --partition=batch" in job["script"] for job in jobs)
    assert (slurm.submissions(), results.exists()) == ([], False)
