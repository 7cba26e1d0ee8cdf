"""What ranks leave behind is found again, also after a kill."""

import json

import pytest

from harness.records.collect import AgentRecord, LaunchOutcome, RankExit, collect, read_heartbeats
from harness.records.rank import Failure, StepRecord
from harness.records.run import NodeSample


@pytest.fixture(name="ranks_dir")
def _ranks_dir(tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    return folder


def beats(folder, rank, *lines, tail=""):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"rank_{rank:03d}.progress.jsonl").write_text(text + tail)


def write(folder, name, document):
    (folder / name).write_text(document.model_dump_json())


STARTED = {"time_s": 1.0, "phase": "start"}
STEPS = [{"time_s": 2.0 + i, "phase": "step", "step": i, "seconds": 0.5, "loss": 11.0 - i} for i in range(3)]


def test_finished_ranks_come_back_in_rank_order(tmp_path, ranks_dir, make_spec, make_rank):
    spec = make_spec(gpu="cpu")
    written = [make_rank(spec, rank) for rank in range(2)]
    for record in reversed(written):
        write(ranks_dir, f"rank_{record.rank:03d}.json", record)
    sample = NodeSample(hostname="node0", error="no NVML library")
    write(ranks_dir, "nvml_node0.json", sample)
    found = collect(tmp_path, 2)
    assert (found.ranks, found.nodes, found.notes) == (tuple(written), (sample,), ())


def test_gaps_of_the_samplers_of_all_nodes_are_reported(tmp_path, ranks_dir):
    write(ranks_dir, "outcome_node_000.json", LaunchOutcome(status="ok"))
    write(ranks_dir, "outcome_node_001.json", LaunchOutcome(status="ok", unwatched="the sampler was killed"))
    assert collect(tmp_path, 0).unwatched == ("the sampler was killed",)


def test_a_killed_rank_keeps_the_steps_it_had_reported(tmp_path, ranks_dir):
    beats(ranks_dir, 0, STARTED, *STEPS, tail='{"time_s": 9.0, "pha')
    exited = RankExit(rank=0, local_rank=0, pid=4711, exit_code=-9, signal="SIGKILL")
    write(ranks_dir, "launch.json", AgentRecord(status="failed", failures=(exited,)))
    found = collect(tmp_path, 1)
    (record,) = found.ranks
    assert record.steps == tuple(StepRecord(step=i, seconds=0.5, loss=11.0 - i) for i in range(3))
    assert record.failure == Failure(kind="signal", message="killed by SIGKILL", phase="step", step=2)
    assert (record.finished, record.pid, record.memory) == (False, 4711, None)
    assert found.notes == ()


@pytest.mark.parametrize(
    ("exit_code", "message", "expected"),
    [(3, None, "exit code 3"), (1, "ValueError: no", "ValueError: no")],
)
def test_a_rank_that_exited_without_a_record_says_how(tmp_path, ranks_dir, exit_code, message, expected):
    exited = RankExit(rank=0, local_rank=0, pid=1, exit_code=exit_code, message=message)
    write(ranks_dir, "launch.json", AgentRecord(status="failed", failures=(exited,)))
    failure = collect(tmp_path, 1).ranks[0].failure
    assert failure.kind == "error" and failure.message.startswith(expected)


def test_a_hang_is_the_fault_of_the_rank_that_is_named_and_a_rank_that_left_nothing_is_lost(tmp_path, ranks_dir):
    for rank in range(2):
        beats(ranks_dir, rank, STARTED)
    write(ranks_dir, "outcome.json", LaunchOutcome(status="hang", rank=1, reason="rank 1 stood still for 60 s"))
    records = collect(tmp_path, 3).ranks
    assert [record.failure.kind for record in records] == ["lost", "hang", "lost"]
    assert records[1].failure.message == "rank 1 stood still for 60 s"
    assert (records[2].finished, records[2].steps) == (False, ())


def test_ranks_of_several_nodes_are_looked_up_in_each_agents_file(tmp_path, ranks_dir):
    for node in range(2):
        exited = RankExit(rank=node, local_rank=0, pid=10 + node, exit_code=-11, signal="SIGSEGV")
        write(ranks_dir, f"launch_{node}.json", AgentRecord(status="failed", node_rank=node, failures=(exited,)))
    assert [record.pid for record in collect(tmp_path, 2).ranks] == [10, 11]


def test_unreadable_heartbeats_are_counted_and_skipped(tmp_path, ranks_dir):
    beats(ranks_dir, 0, STARTED, {"time_s": "soon"}, {"phase": "step"}, *STEPS)
    path = ranks_dir / "rank_000.progress.jsonl"
    assert (len(read_heartbeats(path)[0]), read_heartbeats(path)[1]) == (4, 2)
    assert [note.startswith("rank 0: 2 lines ") for note in collect(tmp_path, 1).notes] == [True]


def test_memory_snapshots_are_named_and_not_opened(tmp_path, ranks_dir):
    for name in ("snapshot_001.pickle", "snapshot_000.pickle", "snapshot_002.pickle.tmp"):
        (ranks_dir / name).write_bytes(b"anything")
    (snapshots,) = collect(tmp_path, 2).notes
    assert snapshots.endswith("/ranks/snapshot_000.pickle")


def test_a_record_that_cannot_be_read_is_called_damaged_and_keeps_the_steps(tmp_path, ranks_dir):
    beats(ranks_dir, 0, STARTED, *STEPS)
    (ranks_dir / "rank_000.json").write_text('{"rank": 0, "world_')
    found = collect(tmp_path, 1)
    (record,) = found.ranks
    assert record.failure.kind == "lost"
    assert "rank_000.json" in record.failure.message and "not JSON" in record.failure.message
    assert "rank_000.json:1: not JSON" in found.notes[0]
    assert (len(record.steps), len(record.notes), "damaged" in record.notes[0]) == (3, 1, True)


def test_how_a_killed_rank_ended_counts_for_more_than_its_damaged_record(tmp_path, ranks_dir):
    (ranks_dir / "rank_000.json").write_text("{")
    exited = RankExit(rank=0, local_rank=0, pid=4711, exit_code=-9, signal="SIGKILL")
    write(ranks_dir, "launch.json", AgentRecord(status="failed", failures=(exited,)))
    assert collect(tmp_path, 1).ranks[0].failure.message == "killed by SIGKILL"
