"""Whose a folder is: pid and start time of this boot and container, and nothing guessed beyond."""

import os
import subprocess
import sys

import pytest

from harness.launch.processes import claim, life_of, this_process
from harness.records.rank import OWNER, Owner


@pytest.fixture
def owned_by(tmp_path):
    """What is known of a folder that this process has claimed, with some facts of its claim changed."""

    def life(**changes):
        owner = this_process().model_copy(update=changes)
        (tmp_path / OWNER).write_text(owner.model_dump_json())
        return life_of(tmp_path)

    return life


def test_a_folder_of_a_living_process_is_alive(tmp_path):
    claim(tmp_path)
    assert life_of(tmp_path).state == "alive"
    assert Owner.model_validate_json((tmp_path / OWNER).read_text()).pid == os.getpid()


def test_a_folder_of_a_process_that_ended_is_dead(tmp_path):
    program = f"from pathlib import Path; from harness.launch.processes import claim; claim(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    life = life_of(tmp_path)
    assert (life.state, life.reason.endswith("is gone")) == ("dead", True)


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"start_ticks": 1}, "dead", ""),  # another process of the same number
        ({"boot_id": "another"}, "dead", ""),  # the machine was started anew
        ({"boot_id": "another", "hostname": "node7"}, "unknown", "node7"),
        ({"pid_namespace": "pid:[1]"}, "unknown", "container"),
    ],
)
def test_another_process_is_not_taken_for_the_owner_and_what_cannot_be_seen_from_here_is_unknown(
    owned_by, changes, state, reason
):
    life = owned_by(**changes)
    assert life.state == state and reason in life.reason


def test_a_folder_without_a_claim_or_with_a_damaged_one_is_unknown(tmp_path):
    assert life_of(tmp_path).state == "unknown"
    (tmp_path / OWNER).write_text("{")
    assert (life_of(tmp_path).state, "not JSON" in life_of(tmp_path).reason) == ("unknown", True)
