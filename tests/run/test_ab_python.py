"""`run --ab python=PATH`, and the axis `python` of a sweep: ranks of two environments."""

import json
import sys

import pytest

from tests.environments import environment

ASKED = ("-m", "llama", "-mr", "llama3_8b", "-g", "cpu", "-ms", "6", "--eval_time_start_step", "2", "-sl", "64")


@pytest.mark.slow
def test_the_cells_differ_in_the_environment_alone_and_both_run(mbr_perf, tmp_path):
    python = environment(tmp_path / "env")
    answer = mbr_perf("run", *ASKED, "--ab", f"python={python}", "--dryrun", "--json")
    cells = json.loads(answer.out)["cells"]
    assert answer.code == 0
    assert [(cell["fate"], cell["changes"]["python"]) for cell in cells] == [("run", "own"), ("run", str(python))]


@pytest.mark.slow
@pytest.mark.parametrize("command", [("run", "--ab"), ("sweep", "--over")])
def test_a_wrong_environment_is_a_wrong_request(mbr_perf, tmp_path, command):
    name, option = command
    for path in (tmp_path / "none", tmp_path, sys.executable):
        answer = mbr_perf(name, *ASKED, option, f"python={path}", "--results_dir", tmp_path / "results")
        assert (answer.code, answer.out, str(path) in answer.err) == (2, "", True), answer.err
    assert not (tmp_path / "results").exists()


@pytest.mark.train
@pytest.mark.long
def test_a_slowed_build_is_the_slower_cell(mbr_perf, tmp_path):
    slowed = environment(tmp_path / "slow", sleep_s=0.3)
    answer = mbr_perf("run", *ASKED, "--ab", f"python={slowed}", "--repeats", "3", "--results_dir", tmp_path, "--json")
    own, other = json.loads(answer.out)["cells"]
    assert (own["status"], other["status"]) == ("ok", "ok")
    assert other["vs_control"]["time"]["interval"][0] > 0
    assert other["vs_control"]["memory"]["saved_bytes"] == 0
