"""The rank of a recorded run that failed first, and how the run ended."""

import pytest

from harness.diagnose.forecasts import Planner
from harness.diagnose.of_run import case_of_run, case_of_unfinished
from harness.diagnose.values import FailedRank
from harness.launch.environment import this_host
from harness.records.rank import Failure, Heartbeat
from harness.records.run import ImportedLog
from harness.resolve.resolve import Request, resolve
from harness.units import GIB
from tests.diagnose.conftest import FRAGMENTED

OOM = Failure(kind="oom", message=FRAGMENTED, phase="forward_backward", step=3)
PEER = Failure(kind="error", message="RuntimeError: Connection closed by peer", phase="forward_backward", step=2)
SIGTERM = Failure(kind="signal", message="Signal 15 (SIGTERM) received by PID 4")
ERROR = Failure(kind="error", message="ValueError: no", phase="step", step=3)
HANG = Failure(kind="hang", message="rank 1 gave no sign of life for 61.0 s (limit 60.0 s) in phase step after step 3")


@pytest.fixture(name="failed_run")
def _failed_run(make_spec, make_rank, make_record):
    """A run whose first ranks have these failures."""

    def build(*failures, status="failed", **changes):
        spec = make_spec(num_gpus=32)
        ranks = [make_rank(spec, rank, failure=failure) for rank, failure in enumerate(failures)]
        ranks += [make_rank(spec, rank) for rank in range(len(failures), 32)]
        return make_record(spec, ranks=tuple(ranks), status=status, **changes)

    return build


@pytest.mark.parametrize(
    ("failures", "rank"),
    [
        ((PEER, OOM), 1),
        ((SIGTERM, ERROR), 1),
        ((PEER, ERROR), 1),
        ((HANG, ERROR), 1),
        ((None, SIGTERM, PEER, OOM, ERROR), 3),
        ((ERROR, ERROR), 0),
    ],
)
def test_the_rank_whose_failure_explains_the_others_is_named(failed_run, failures, rank):
    assert case_of_run(failed_run(*failures)).failed.rank == rank


def test_a_run_out_of_memory_has_its_class_place_and_stage(failed_run):
    case = case_of_run(failed_run(PEER, OOM, status="oom"))
    assert (case.verdict.oom_class, case.failed.when) == ("fragmentation", "in forward_backward of step 3")
    assert case.ranks[31].pp_rank == 3


def test_a_self_imposed_limit_is_not_the_limit_of_the_device(make_spec, make_rank, make_record):
    spec = make_spec(gpu="cpu", measure={"max_steps": 10, "memory_limit_bytes": 10**9})
    words = Failure(kind="oom", message="MemoryLimitError: out of memory under --memory_limit")
    ranks = (make_rank(spec, 0, failure=words), make_rank(spec, 1))
    case = case_of_run(make_record(spec, ranks=ranks, status="oom"))
    assert (case.verdict.oom_class, case.verdict.confidence) == ("self_imposed_limit", "high")


def test_the_recipes_environment_is_not_that_of_an_imported_job(make_spec, make_record):
    ours = make_record(make_spec(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}))
    imported = ours.model_copy(update={"imported": ImportedLog(source_format="bridge", files=())})
    assert [case_of_run(run).expandable_segments for run in (ours, imported)] == [True, None]


@pytest.mark.parametrize(
    ("reason", "oom_class"),
    [
        ("Slurm: TIMEOUT after 30 min", "time_limit"),
        ("Slurm: NODE_FAIL (NodeDown) on n2", "node_failure"),
        ("Slurm: OUT_OF_MEMORY of a node's host memory (FAILED to Slurm; its log tells of a kill)", "host_memory"),
        ("Slurm: CANCELLED by 1000", "not_oom"),
    ],
)
def test_slurms_reason_explains_the_ranks_that_it_ended(failed_run, reason, oom_class):
    for failures in ((SIGTERM, PEER), (HANG,)):
        verdict = case_of_run(failed_run(*failures, failure=reason)).verdict
        assert (verdict.oom_class, verdict.confidence, verdict.reason) == (oom_class, "high", reason)


def test_a_rank_that_ran_out_of_memory_explains_the_time_limit_that_the_others_ran_into(failed_run):
    case = case_of_run(failed_run(SIGTERM, OOM, failure="Slurm: TIMEOUT after 30 min"))
    assert case.verdict.oom_class == "fragmentation"


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (((1, 30),), ("rank 0, step 1 of 10", "T00:00:30Z")),
        (((2, 50), (1, 40), (1, 20), (2, 10)), ("rank 2, step 1 of 10", "T00:00:20Z")),
        (((1, 30), (0, 10)), ("rank 1, no step", "T00:00:10Z")),
        (((1, 30), None), ("rank 1, no step", "none")),
    ],
)
def test_the_slowest_rank_and_of_equally_slow_ranks_the_first_to_fall_silent_is_named(
    tmp_path, make_spec, ends, expected
):
    (tmp_path / "ranks").mkdir()
    for rank, end in enumerate(ends):
        if end is not None:
            steps, last = end
            beats = [Heartbeat(time_s=step, phase="step", step=step, seconds=1.0) for step in range(steps)]
            text = "".join(
                f"{beat.model_dump_json()}\n" for beat in [*beats, Heartbeat(time_s=last, phase="train_step")]
            )
            (tmp_path / "ranks" / f"rank_{rank:03d}.progress.jsonl").write_text(text)
    (note,) = case_of_unfinished(tmp_path, make_spec(gpu="cpu", num_gpus=len(ends)), None, this_host()).notes
    assert all(part in note for part in expected), note


@pytest.mark.parametrize(
    ("message", "oom_class"),
    [("Signal 9 (SIGKILL) received by PID 4", "killed"), ("exitcode -9", "killed"), ("Signal 11 (SIGSEGV)", "not_oom")],
)
def test_a_killed_rank_is_not_confused_with_a_crashed_rank(failed_run, message, oom_class):
    assert case_of_run(failed_run(Failure(kind="signal", message=message))).verdict.oom_class == oom_class
    assert case_of_run(failed_run(Failure(kind="error", message=message))).verdict.oom_class == "not_oom"


@pytest.mark.parametrize(("hostname", "place"), [("node7", "node7"), ("unknown", "")])
def test_the_node_of_the_failed_rank_is_shown_if_known(make_spec, make_rank, make_record, hostname, place):
    spec = make_spec(gpu="cpu")
    ranks = (make_rank(spec, 0, failure=ERROR, hostname=hostname), make_rank(spec, 1))
    assert case_of_run(make_record(spec, ranks=ranks, status="failed")).failed.place == place


@pytest.mark.parametrize(("kind", "is_believed"), [("error", True), ("peer", False)])
def test_an_error_in_the_logs_of_an_unfinished_run_counts_unless_a_peer_was_lost(
    tmp_path, make_spec, case, kind, is_believed
):
    (tmp_path / "ranks" / "rank_000").mkdir(parents=True)
    logged = case("ValueError: no", failed=FailedRank(0, kind, "ValueError: no"))
    found = case_of_unfinished(tmp_path, make_spec(gpu="cpu"), logged, this_host())
    assert (found.failed is not None, found.status) == (is_believed, "failed" if is_believed else "unknown")


def test_no_change_is_tried_whose_sizes_do_not_divide_the_gpus():
    sizes = {"num_gpus": 1, "tensor_model_parallel_size": 1, "context_parallel_size": 1, "global_batch_size": 2}
    asked = Request(model_recipe_name="llama3_8b", gpu="h100", **sizes)
    assert list(Planner(this_host(), 80 * GIB).variants(resolve(asked).spec)) == []
