"""A recorded run stands in for a launch."""

from dataclasses import replace

import pytest

from harness.launch.plan import LaunchRequest
from harness.launch.replay import LAUNCHERS, execute
from harness.measure.values import launch_document
from harness.records.collect import LaunchOutcome
from harness.records.gating import LaunchSettings
from harness.records.rank import Failure, RankRecord
from tests.commands import json_of, refused


def rank_record(rank, failure=None):
    finished = failure is None
    return RankRecord(
        rank=rank, world_size=2, hostname="n", pid=1, finished=finished, failure=failure
    ).model_dump_json()


@pytest.fixture
def recorded(tmp_path, cpu):
    """A run folder of two ranks that ended well, as an older version left it: without launch or outcome."""
    folder = tmp_path / "recorded"
    (folder / "ranks").mkdir(parents=True)
    (folder / "spec.json").write_text(cpu().model_dump_json())
    for rank in range(2):
        (folder / "ranks" / f"rank_{rank:03d}.json").write_text(rank_record(rank))
        (folder / "ranks" / f"rank_{rank:03d}.progress.jsonl").write_text("")
    (folder / "ranks" / "pid_0").write_text("1")
    return folder


@pytest.fixture
def request_for(cpu, host, tmp_path, recorded):
    return LaunchRequest(spec=cpu(), run_dir=tmp_path / "new", host=host, settings=LaunchSettings(replay_from=recorded))


def replayed(request):
    return execute(LAUNCHERS["replay"](request), on_progress=lambda _: None)


def test_planning_a_replay_writes_nothing_and_only_records_of_ranks_are_copied(request_for, recorded):
    plan = LAUNCHERS["replay"](request_for)
    assert json_of(launch_document(plan))["files"][0] == "rank_000.json"
    assert not request_for.run_dir.exists()
    assert replayed(request_for).status == "ok"
    names = {path.name for path in (request_for.run_dir / "ranks").iterdir()}
    assert names == {
        "rank_000.json", "rank_001.json", "rank_000.progress.jsonl", "rank_001.progress.jsonl",
    }  # fmt: skip
    assert (request_for.run_dir / "ranks" / "rank_001.json").read_text() == rank_record(1)


def test_a_recorded_failure_stays_one(request_for, recorded):
    failure = Failure(kind="oom", message="CUDA out of memory")
    (recorded / "ranks" / "rank_001.json").write_text(rank_record(1, failure))
    outcome = replayed(request_for)
    assert (outcome.status, outcome.rank, outcome.reason) == ("failed", 1, "rank 1: CUDA out of memory")


def test_a_recorded_outcome_is_the_outcome(request_for, recorded):
    was = LaunchOutcome(status="hang", exit_code=143, seconds=12.5, rank=1, reason="silent")
    (recorded / "ranks" / "outcome.json").write_text(was.model_dump_json())
    assert replayed(request_for) == was


def test_a_rank_that_left_only_heartbeats_did_not_end_well(request_for, recorded):
    (recorded / "ranks" / "rank_001.json").unlink()
    outcome = replayed(request_for)
    assert (outcome.status, outcome.rank, "heartbeats" in outcome.reason) == ("failed", 1, True)


def test_what_cannot_be_replayed_is_refused(request_for, recorded, cpu):
    def refusal(*names, **changes):
        refused(lambda: LAUNCHERS["replay"](replace(request_for, **changes)), *names)

    refusal(str(recorded), "tiny.pretrain.fp32.2gpu.none", spec=cpu(task="sft"))
    refusal(str(recorded), "itself", run_dir=recorded)
    refusal("recorded", settings=LaunchSettings())
    (recorded / "ranks").rename(recorded / "elsewhere")
    refusal(str(recorded), "heartbeats")
    (recorded / "spec.json").unlink()
    refusal(str(recorded), "run folder")
