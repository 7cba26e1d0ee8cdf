"""The folder and the golden of a run, and the messages when mbr-perf cannot use them."""

import re

import pytest

from harness.records.store import read_run


@pytest.mark.parametrize("left", ["rank_000.json", "rank_000.progress.jsonl"])
def test_ranks_of_a_run_that_was_never_committed_are_not_taken_for_this_ones(replay, tmp_path, left):
    ranks = tmp_path / "mine" / "ranks"
    ranks.mkdir(parents=True)
    (ranks / left).write_text("")
    answer = replay("ok", "--run_dir", tmp_path / "mine")
    assert answer.code == 2
    assert "already holds a run\n  name a new folder" in answer.err
    assert not (tmp_path / "mine" / "record.json").exists()


def test_a_run_folder_that_cannot_be_made_is_a_wrong_request(replay, tmp_path):
    (tmp_path / "file").write_text("")
    answer = replay("ok", "--run_dir", tmp_path / "file" / "run")
    assert answer.code == 2
    assert re.search(f"error: --run_dir {tmp_path / 'file' / 'run'}: .*Not a directory", answer.err)


def test_every_fault_of_a_golden_is_reported_with_the_run_that_is_kept(replay, tmp_path):
    (tmp_path / "golden.json").write_text('{"kind": "measured", "recipe": 3}')
    answer = replay("ok", "--golden_values_path", tmp_path / "golden.json")
    assert answer.code == 2
    (kept,) = (tmp_path / "results" / "runs").iterdir()
    assert f" {kept}" in answer.err
    assert "golden.json:1: recipe: " in answer.err
    assert "golden.json:1: metrics: " in answer.err
    assert read_run(kept).status == "ok"


@pytest.mark.parametrize(("name", "code"), [("ok", 0), ("oom", 4), ("killed", 3)])
def test_a_further_node_says_how_the_run_ended_and_leaves_the_record_to_the_first(replay, tmp_path, name, code):
    node = ("--nnodes", "2", "--node_rank", "1", "--master_addr", "node0", "--run_dir", tmp_path / "shared")
    assert replay(name, *node).code == code
    assert not (tmp_path / "shared" / "record.json").exists()
