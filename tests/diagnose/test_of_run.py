"""Which rank of a recorded run really failed, and what is known of its end."""

import pytest

from harness.diagnose.of_run import case_of_run
from harness.records.rank import Failure
from harness.records.run import ImportedLog
from tests.diagnose.conftest import FRAGMENTED

OOM = Failure(kind="oom", message=FRAGMENTED, phase="forward_backward", step=3)
PEER = Failure(kind="error", message="RuntimeError: Connection closed by peer", phase="forward_backward", step=2)
SIGTERM = Failure(kind="signal", message="Signal 15 (SIGTERM) received by PID 4")
ERROR = Failure(kind="error", message="ValueError: no", phase="step", step=3)


@pytest.fixture(name="failed_run")
def _failed_run(make_spec, make_rank, make_record):
    """A run on CPU-sized worlds whose ranks failed so."""

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
        ((None, SIGTERM, PEER, OOM, ERROR), 3),
        ((ERROR, ERROR), 0),
    ],
)
def test_the_rank_that_explains_the_others_is_named(failed_run, failures, rank):
    assert case_of_run(failed_run(*failures)).failed.rank == rank


def test_a_run_out_of_memory_has_its_class_place_and_stage(failed_run):
    case = case_of_run(failed_run(PEER, OOM, status="oom"))
    assert (case.verdict.oom_class, case.failed.when) == ("fragmentation", "in forward_backward of step 3")
    assert [rank.rank for rank in case.ranks if rank.has_oom] == [1]
    assert case.ranks[31].pp_rank == 3


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True), ({"PYTORCH_CUDA_ALLOC_CONF": ""}, False),
     ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True"}, True), ({"A": "b"}, False), ({}, None)],
)  # fmt: skip
def test_what_is_known_of_expandable_segments(failed_run, environment, expected):
    assert case_of_run(failed_run(provenance={"environment": environment})).expandable_segments is expected


def test_a_limit_of_ones_own_is_not_the_devices(make_spec, make_rank, make_record):
    spec = make_spec(gpu="cpu", measure={"max_steps": 10, "memory_limit_bytes": 10**9})
    words = Failure(kind="oom", message="MemoryLimitError: out of memory under --memory_limit")
    ranks = (make_rank(spec, 0, failure=words), make_rank(spec, 1))
    case = case_of_run(make_record(spec, ranks=ranks, status="oom"))
    assert (case.verdict.oom_class, case.verdict.confidence) == ("self_imposed_limit", "high")


def test_words_that_nobody_knows_are_out_of_memory_all_the_same(failed_run):
    case = case_of_run(failed_run(Failure(kind="oom", message="no room"), status="oom"))
    assert (case.verdict.oom_class, case.verdict.confidence) == ("capacity", "low")


def test_a_run_that_ended_well_has_its_speed(make_record):
    case = case_of_run(make_record(seconds=2.5))
    assert (case.status, case.verdict.oom_class, case.step_time_s) == ("ok", "not_oom", 2.5)
    assert case.tflops_per_gpu > 0


def test_a_loss_that_is_not_finite_is_seen(failed_run):
    words = Failure(kind="non_finite_loss", message="NonFiniteLossError: loss is nan at step 4")
    assert case_of_run(failed_run(words)).has_nan


def test_the_recipes_environment_is_not_that_of_an_imported_job(make_spec, make_record):
    spec = make_spec(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    imported = ImportedLog(source_format="bridge", files=())
    ours = make_record(spec)
    assert case_of_run(ours).expandable_segments is True
    assert case_of_run(ours.model_copy(update={"imported": imported})).expandable_segments is None


@pytest.mark.parametrize(
    ("said", "oom_class", "advice"),
    [
        ("Slurm: TIMEOUT after 30 min", "time_limit", "--time_limit"),
        ("Slurm: NODE_FAIL (NodeDown) on n2", "node_failure", "--exclude"),
        ("Slurm: OUT_OF_MEMORY of a node's host memory (FAILED to Slurm; its log tells of the kernel's kill)", "host_memory",
         "memory of the node"),
        ("Slurm: CANCELLED by 1000", "not_oom", "scancel"),
    ],
)  # fmt: skip
def test_what_slurm_said_of_the_end_explains_ranks_that_it_ended(failed_run, said, oom_class, advice):
    case = case_of_run(failed_run(SIGTERM, PEER, failure=said))
    assert (case.verdict.oom_class, case.verdict.confidence, case.verdict.reason) == (oom_class, "high", said)
    assert advice in case.verdict.next_experiment
    assert not case.has_oom or oom_class == "host_memory"


def test_a_rank_that_ran_out_of_memory_explains_the_time_limit_that_the_others_ran_into(failed_run):
    case = case_of_run(failed_run(SIGTERM, OOM, failure="Slurm: TIMEOUT after 30 min"))
    assert case.verdict.oom_class == "fragmentation"


def test_a_hang_is_told_with_its_own_advice(failed_run):
    words = Failure(
        kind="hang", message="rank 1 gave no sign of life for 61.0 s (patience 60.0 s) in phase step after step 3"
    )
    verdict = case_of_run(failed_run(None, words)).verdict
    assert (verdict.oom_class, verdict.reason) == ("not_oom", f"hang: {words.message}")
    assert "--hang_timeout" in verdict.next_experiment
