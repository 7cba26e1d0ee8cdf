"""Which rank of a recorded run really failed, and what is known of its end."""

import pytest

from harness.diagnose.of_run import case_of_run, case_of_unfinished
from harness.diagnose.values import FailedRank
from harness.launch.environment import this_host
from harness.records.collect import AgentRecord
from harness.records.rank import Failure, Heartbeat
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


@pytest.fixture(name="note")
def _note(tmp_path, make_spec):
    """How far ranks came of a run that nobody committed, each after so many of its ten steps."""

    def told(*num_steps):
        (tmp_path / "ranks").mkdir()
        for rank, steps in enumerate(num_steps):
            beats = [Heartbeat(time_s=1.76e9 + step, phase="step", step=step, seconds=1.0) for step in range(steps)]
            text = "".join(f"{beat.model_dump_json()}\n" for beat in beats)
            (tmp_path / "ranks" / f"rank_{rank:03d}.progress.jsonl").write_text(text)
        spec = make_spec(gpu="cpu", num_gpus=len(num_steps))
        return case_of_unfinished(tmp_path, spec, None, this_host()).notes[0].partition(". Last sign")[0]

    return told


@pytest.mark.parametrize(
    ("num_steps", "groups"),
    [
        ((1,), ["rank 0: finished step 1 of 10, then silent"]),
        ((2, 2), ["ranks 0, 1: finished step 2 of 10, then silent"]),
        ((2, 2, 2, 1), ["ranks 0 to 2: finished step 2 of 10, then silent", "rank 3: finished step 1 of 10, then silent"]),
        ((2, 1, 2, 2), ["ranks 0, 2, 3: finished step 2 of 10, then silent", "rank 1: finished step 1 of 10, then silent"]),
        ((2, 1) * 8, ["ranks 0, 2, 4, 6, 8, 10, 12, 14: finished step 2 of 10, then silent",
                      "ranks 1, 3, 5, 7, 9, 11, 13, 15: finished step 1 of 10, then silent"]),
        ((2, 1) * 8 + (2,), ["ranks 0, 2, 4, 6, 8, 10, 12, 14 ...: finished step 2 of 10, then silent",
                             "ranks 1, 3, 5, 7, 9, 11, 13, 15: finished step 1 of 10, then silent"]),
    ],
)  # fmt: skip
def test_ranks_that_came_equally_far_are_told_together(note, num_steps, groups):
    assert note(*num_steps).split("; ") == groups


@pytest.mark.parametrize(("num_groups", "more"), [(8, []), (9, ["and 1 more"])])
def test_of_many_groups_the_first_eight_are_told(note, num_groups, more):
    told = note(*range(1, num_groups + 1)).split("; ")
    assert told == [*(f"rank {rank}: finished step {rank + 1} of 10, then silent" for rank in range(8)), *more]


@pytest.mark.parametrize(
    ("message", "oom_class"),
    [("Signal 9 (SIGKILL) received by PID 4", "killed"), ("exitcode -9", "killed"), ("Signal 11 (SIGSEGV)", "not_oom")],
)
def test_a_rank_that_was_killed_is_not_taken_for_one_that_crashed(failed_run, message, oom_class):
    assert case_of_run(failed_run(Failure(kind="signal", message=message))).verdict.oom_class == oom_class
    assert case_of_run(failed_run(Failure(kind="error", message=message))).verdict.oom_class == "not_oom"


def test_a_hang_before_slurm_ended_the_run_is_explained_by_slurm(failed_run):
    said = "Slurm: TIMEOUT after 30 min"
    words = Failure(kind="hang", message="rank 0 gave no sign of life")
    assert case_of_run(failed_run(words, failure=said)).verdict.oom_class == "time_limit"


@pytest.mark.parametrize(("hostname", "place"), [("node7", "node7"), ("unknown", "")])
def test_the_node_of_the_failed_rank_is_told_where_it_is_known(make_spec, make_rank, make_record, hostname, place):
    spec = make_spec(gpu="cpu")
    ranks = (make_rank(spec, 0, failure=ERROR, hostname=hostname), make_rank(spec, 1))
    assert case_of_run(make_record(spec, ranks=ranks, status="failed")).failed.place == place


@pytest.mark.parametrize(("kind", "is_believed"), [("error", True), ("peer", False)])
def test_an_error_in_the_logs_of_an_unfinished_run_counts_unless_it_is_of_a_lost_peer(
    tmp_path, make_spec, case, kind, is_believed
):
    (tmp_path / "ranks" / "rank_000").mkdir(parents=True)
    heard = case("ValueError: no", failed=FailedRank(0, kind, "ValueError: no"))
    found = case_of_unfinished(tmp_path, make_spec(gpu="cpu"), heard, this_host())
    assert (found.failed is not None, found.status) == (is_believed, "failed" if is_believed else "unknown")


@pytest.mark.parametrize(
    ("signal", "told"), [(15, "ended by SIGTERM, and its ranks with it, after 7 s"), (None, "ended after 7 s")]
)
def test_the_end_of_torchruns_agents_is_told(tmp_path, make_spec, signal, told):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank_000.log").touch()
    agent = AgentRecord(status="signalled" if signal else "failed", signal=signal, seconds=7.0)
    (tmp_path / "ranks" / "launch.json").write_text(agent.model_dump_json())
    notes = case_of_unfinished(tmp_path, make_spec(gpu="cpu"), None, this_host()).notes
    assert f"torchrun on node 0 {told} (ranks/launch.json)." in notes
