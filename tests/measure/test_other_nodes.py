"""The first node reads the run folder only when the others have finished writing, or says that they have not."""

import threading
import time

from harness.launch.plan import Nodes
from harness.measure.launched import wait_for_other_nodes


def test_one_node_waits_for_nobody(tmp_path):
    began = time.monotonic()
    assert wait_for_other_nodes(tmp_path, Nodes()) == ()
    assert time.monotonic() - began < 0.1


def test_the_first_node_waits_until_the_others_have_written_their_outcome(tmp_path):
    (tmp_path / "ranks").mkdir()
    late = threading.Timer(0.5, (tmp_path / "ranks" / "outcome_node_001.json").touch)
    late.start()
    began = time.monotonic()
    assert wait_for_other_nodes(tmp_path, Nodes(2, 0, "head"), patience_s=20) == ()
    assert time.monotonic() - began >= 0.4


def test_a_node_that_never_ends_is_named(tmp_path):
    notes = wait_for_other_nodes(tmp_path, Nodes(3, 0, "head"), patience_s=0.3)
    assert [(note[:7], " 0.3 s;" in note) for note in notes] == [("node 1 ", True), ("node 2 ", True)]
