"""What history keeps of a run."""

from harness.history.record import Occasion, history_record
from harness.judge.derive import derive
from harness.predict.flops import FORMULA_VERSION


def test_the_figures_are_those_of_the_metric_table_in_its_units(make_record):
    record = make_record(seconds=2.0)
    metrics = derive(record)
    kept = history_record(record, metrics)
    assert kept.metrics["step_time_s"].value == 2.0
    assert kept.metrics["tflops_per_gpu"].value == metrics.tflops_per_gpu.median
    assert kept.metrics["tflops_per_gpu"].n == metrics.tflops_per_gpu.n
    assert kept.metrics["peak_allocated_bytes"].value == 58_000_000_000
    assert kept.metrics["peak_allocated_bytes"].n is None
    assert kept.formula_version == FORMULA_VERSION


def test_the_case_is_the_place_of_its_golden(make_record, make_spec):
    record = make_record(make_spec(gpu="cpu", recompute="mlp"))
    kept = history_record(record, derive(record))
    assert kept.case == "cpu/llama3_8b.pretrain.fp32.2gpu.mlp"
    assert kept.fingerprint == record.fingerprint
    assert kept.device_name == "A Processor"


def test_runs_under_a_memory_limit_are_a_case_of_their_own(make_record, make_spec):
    free, limited = (
        make_record(make_spec(gpu="cpu", recompute="mlp", measure={"max_steps": 9, "memory_limit_bytes": limit}))
        for limit in (None, 2**30 // 8)
    )
    assert free.fingerprint == limited.fingerprint
    cases = [history_record(record, derive(record)).case for record in (free, limited)]
    assert cases == ["cpu/llama3_8b.pretrain.fp32.2gpu.mlp", "cpu/llama3_8b.pretrain.fp32.2gpu.mlp@0.125GiB"]


def test_commit_branch_container_job_and_versions_are_those_of_the_run(make_record):
    record = make_record(
        provenance={"git_commit": "abc", "git_branch": "main", "container": "nemo.sqsh", "job_id": "7"}
    )
    kept = history_record(record, derive(record))
    assert (kept.git_commit, kept.branch) == ("abc", "main")
    assert (kept.container, kept.job_id) == ("nemo.sqsh", "7")
    assert kept.versions == record.provenance.versions
    assert kept.driver_version == "550.54.15"


def test_what_a_failed_run_did_not_measure_is_left_out_and_its_failure_is_one_line(make_record):
    record = make_record(ranks=(), status="failed", failure="rank 3 died\nTraceback ...")
    kept = history_record(record, derive(record))
    assert (kept.status, kept.failure, kept.metrics) == ("failed", "rank 3 died", {})


def test_the_night_shows_what_the_run_was_for(make_record):
    record = make_record()
    occasion = Occasion(suite="h100_nightly", night_id="n1", purpose="confirm", outcome="regression")
    kept = history_record(record, derive(record), occasion)
    assert (kept.suite, kept.night_id, kept.purpose, kept.outcome) == ("h100_nightly", "n1", "confirm", "regression")
