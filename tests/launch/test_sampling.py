"""The sampler frames the ranks: it looks first and writes last."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import BadRequestError
from harness.launch.plan import LaunchPlan
from harness.launch.replay import execute

MakePlan = Callable[..., LaunchPlan]

SAMPLER = """
import json, os, pathlib, signal, sys, time
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
ranks_at_first_look = len(list(out.parent.glob("pid_*")))
def finish(number, frame):
    out.write_text(json.dumps({"at_start": ranks_at_first_look, "at_end": len(list(out.parent.glob("pid_*")))}))
    sys.exit(0)
signal.signal(signal.SIGTERM, finish)
time.sleep(0.3)
out.write_text("{}")
time.sleep(60)
"""


def with_sampler(plan, tmp_path, code):
    script = tmp_path / "sampler.py"
    script.write_text(code)
    return replace(plan, sampler=(sys.executable, str(script), "--out", str(plan.run_dir / "ranks" / "nvml_n.json")))


def run_of(make_plan, python, script):
    plan = make_plan(python=python)
    return replace(plan, worker=(script, str(plan.run_dir), "ok"))


def test_the_sampler_looks_before_the_first_rank_and_after_the_last(make_plan, fake_python, two_ranks, tmp_path):
    plan = with_sampler(run_of(make_plan, fake_python, two_ranks), tmp_path, SAMPLER)
    outcome = execute(plan, on_progress=lambda _: None)
    assert (outcome.status, outcome.unwatched) == ("ok", None)
    assert plan.sampler_file is not None
    assert json.loads(plan.sampler_file.read_text()) == {"at_start": 0, "at_end": 2}


def test_a_sampler_that_dies_does_not_stop_the_run(make_plan, fake_python, two_ranks, tmp_path):
    plan = with_sampler(run_of(make_plan, fake_python, two_ranks), tmp_path, "raise SystemExit('no driver')")
    outcome = execute(plan, on_progress=lambda _: None)
    expected = "the GPUs were not sampled to the end: the sampler exited with code 1; see logs/sampler.log"
    assert (outcome.status, outcome.unwatched) == ("ok", expected)
    assert plan.sampler_log.read_text() == "no driver\n"


def test_a_sample_of_an_earlier_run_is_not_taken_for_this_one(make_plan, fake_python, two_ranks, tmp_path):
    plan = with_sampler(run_of(make_plan, fake_python, two_ranks), tmp_path, "raise SystemExit(1)")
    assert plan.sampler_file is not None
    plan.sampler_file.parent.mkdir(parents=True)
    plan.sampler_file.write_text("old")
    execute(plan, on_progress=lambda _: None)
    assert not plan.sampler_file.exists()


LOCKING = """
import os, pathlib, sys, time
where = pathlib.Path(__file__).with_name("clocks")
if "reset" in sys.argv:
    where.write_text(where.read_text() + " ".join(sys.argv[1:]))
    sys.exit(0)
where.write_text("locked ")
pathlib.Path(sys.argv[sys.argv.index("--out") + 1]).write_text("{}")
%s
"""


def locking(plan, tmp_path, rest):
    """The plan with a sampler that locks clocks; its script stands where the real one has `-m harness.engine.nvml`."""
    script = tmp_path / "sampler.py"
    script.write_text(LOCKING % rest)
    out = str(plan.run_dir / "ranks" / "nvml_n.json")
    return replace(plan, sampler=(sys.executable, str(script), "sample", "--out", out, "--gpu_clock_mhz", "1400"))


def test_clocks_that_cannot_be_locked_stop_the_run_before_a_rank_starts(make_plan, fake_python, two_ranks, tmp_path):
    plan = locking(run_of(make_plan, fake_python, two_ranks), tmp_path, "")
    script = Path(plan.sampler[1])
    script.write_text("import sys; print('Insufficient Permissions (NVML 4)', file=sys.stderr); sys.exit(77)")
    with pytest.raises(BadRequestError, match=r"cannot be locked: Insufficient Permissions \(NVML 4\)"):
        execute(plan, on_progress=lambda _: None)
    assert list((plan.run_dir / "ranks").glob("pid_*")) == []


@pytest.mark.parametrize(
    ("rest", "left"),
    [
        ("os.kill(os.getpid(), 9)", "locked reset --gpu_clock_mhz 1400"),
        ("time.sleep(60)", "locked reset --gpu_clock_mhz 1400"),
        ("import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(60)", "locked "),
    ],
    ids=["killed", "ended by the signal", "ended in order"],
)
def test_clocks_that_a_dead_sampler_left_locked_are_reset(make_plan, fake_python, two_ranks, tmp_path, rest, left):
    plan = locking(run_of(make_plan, fake_python, two_ranks), tmp_path, rest)
    assert execute(plan, on_progress=lambda _: None).status == "ok"
    assert (tmp_path / "clocks").read_text() == left
