"""A further node of a batch: which run it takes part in, and when it ends."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from harness.batch.nodes import Follower, follow
from harness.errors import ExitCode, RunFailedError
from harness.launch.processes import claim, release
from harness.records.store import RECORD
from tests.batch.conftest import Lines


@pytest.fixture(name="begun")
def _begun(batch):
    """A batch of two runs that node 0 works in; it has begun the second run."""
    recorded = batch("ok")
    runs = tuple(recorded.due())
    folders = [recorded.planned(run).run_dir for run in runs]
    for folder in folders:
        (folder / "ranks").mkdir(parents=True)
    claim(recorded.folder)
    claim(folders[1])
    return recorded, runs, folders


def node_1(batch):
    """The second node of a job."""
    return Follower(batch.folder, 1, "Slurm", "node1", lambda: False)


def test_a_node_takes_part_in_the_run_that_node_0_began_until_it_is_over(begun):
    recorded, runs, (_, folder) = begun
    second, third = (replace(node_1(recorded), node_rank=rank) for rank in (1, 2))
    assert second.open_run(recorded, runs) is runs[1]
    assert second.open_run(recorded, runs[:1]) is None
    (folder / "ranks" / "outcome_node_001.json").touch()
    assert (second.open_run(recorded, runs), third.open_run(recorded, runs)) == (None, runs[1])
    (folder / RECORD).touch()
    assert third.open_run(recorded, runs) is None


def test_a_run_that_another_process_began_is_not_taken_part_in(begun):
    recorded, runs, (_, folder) = begun
    owner = folder / "harness.json"
    owner.write_text(owner.read_text().replace('"pid": ', '"pid": 1'))
    assert node_1(recorded).open_run(recorded, runs) is None


def test_a_node_ends_when_node_0_releases_the_folder_and_gives_up_where_it_does_not(begun):
    recorded, runs, (_, folder) = begun
    (folder / RECORD).touch()
    (recorded.folder / "sweep.json").touch()
    follower = replace(node_1(recorded), patience_s=0.3)

    def opened():
        release(recorded.folder)
        return recorded, runs

    with pytest.raises(RunFailedError, match=r"for 0\.3 s"):
        follow(follower, "sweep.json", lambda: (recorded, runs), lambda _: nullcontext(Lines()))
    assert follow(follower, "sweep.json", opened, lambda _: nullcontext(Lines())) is ExitCode.OK
    with pytest.raises(RunFailedError, match="node 0 "):
        follow(follower, "sweep.json", opened, lambda _: nullcontext(Lines()))


def test_a_node_joins_the_open_run_and_tells_how_it_ended(begun):
    recorded, runs, (_, folder) = begun
    (recorded.folder / "sweep.json").touch()
    shown, joined = Lines(), []

    def run_here(due, run_dir, progress, parents, node_rank):
        joined.append((due, run_dir, node_rank))
        (folder / RECORD).touch()
        release(recorded.folder)
        return type("Ran", (), {"signal": 15})

    recorded.run_here = run_here
    code = follow(node_1(recorded), "sweep.json", lambda: (recorded, runs), lambda _: nullcontext(shown))
    assert (code, joined, shown.lines) == (ExitCode.TERMINATED, [(runs[1], folder, 1)], ["interrupted by SIGTERM"])
