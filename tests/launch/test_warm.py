"""What only launches from a warm parent do; what they share with a fresh torchrun is in `test_torchrun.py`."""

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from harness.launch.processes import descendants
from harness.launch.warm import WarmParents
from harness.records.collect import LaunchOutcome
from tests.launch.conftest import FOLDER, RANK, WITHOUT_MEGATRON, all_gone, inherited, run, started_harness
from tests.waiting import wait_until

pytestmark = [pytest.mark.train, pytest.mark.slow]


@pytest.fixture
def plans(make_plan, tmp_path):
    """A new plan in a folder of its own whose two ranks run ``script`` with the arguments; ``env`` over a plain one."""
    numbers = count()

    def make(script, *arguments, env=None):
        plain = {
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHDYNAMO_DISABLE": "1",
            "PYTHONSAFEPATH": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        run_dir = tmp_path / f"run_{next(numbers)}"
        run_dir.mkdir()
        plan = make_plan(env=inherited(**plain | (env or {})), run_dir=run_dir, without_gpu=True)
        return replace(plan, worker=(script, str(run_dir), *arguments))

    return make


@pytest.fixture
def two(plans, light):
    """Ranks that heartbeat and end. Their parent does not import megatron-core."""
    return lambda env=None: plans(RANK, "ok", env={"PYTHONPATH": light} | (env or {}))


def kept_pids(parents):
    """Process ids of the parents that are kept, the last used one at the end."""
    return tuple(parent.process.pid for parent in parents._parents.values())


def test_a_rank_finds_what_a_fresh_one_finds_whatever_the_launch_before_it_did(plans, warm_parents):
    """Without OMP_NUM_THREADS, which torchrun then sets, and which is read while libraries load."""

    def launched(kept):
        plan = plans(str(FOLDER / "scripted_facts.py"), env={"OMP_NUM_THREADS": None})
        outcome = run(plan, kept)
        assert (outcome.status, outcome.warm) == ("ok", kept is not None), plan.launcher_log.read_text()
        read = [
            [json.loads((plan.run_dir / "ranks" / f"{kind}_{rank}.json").read_text()) for rank in (0, 1)]
            for kind in ("facts", "own")
        ]
        return read[0], read[1]

    fresh, _ = launched(None)
    first, own_of_first = launched(warm_parents)
    second, own_of_second = launched(warm_parents)
    assert {key: fact for key, fact in first[0].items() if fact != fresh[0][key]} == {}  # says what differs
    assert first == fresh
    assert [facts["threads_of_torch"] for facts in fresh] == [1, 1]
    assert second == fresh
    for draws in zip(*(rank["draws"] for rank in (*own_of_first, *own_of_second)), strict=True):
        assert len(set(draws)) == 4
    # the first launch filled 480 MB after it wrote this down
    assert max(r["peak_bytes"] for r in own_of_second) < max(r["peak_bytes"] for r in own_of_first) + 100e6


def test_launches_with_the_same_environment_share_a_parent_and_others_do_not(two):
    """The one that was not used for longest ends when there is a third."""
    environments = ({"NVTE_FLASH_ATTN": "0"}, {"NVTE_FLASH_ATTN": "1"})
    with WarmParents() as kept:
        assert run(two(), kept).warm
        first = kept_pids(kept)
        assert run(two(), kept).warm
        assert (kept_pids(kept), len(first)) == (first, 1)
        assert run(two(environments[0]), kept).warm
        second = kept_pids(kept)[1:]
        assert kept_pids(kept) == first + second
        assert run(two(), kept).warm
        assert run(two(environments[1]), kept).warm
        third = kept_pids(kept)[1:]
        assert kept_pids(kept) == first + third
        assert all_gone([*second], within_s=0.1)
    assert all_gone([*first, *third], within_s=0.1)


@pytest.mark.long
def test_a_launch_outlives_its_parent_and_the_next_one_gets_a_new_parent(two):
    with WarmParents() as kept:
        killed = []

        def kill_parent(_):
            if not killed:
                killed.extend(kept_pids(kept))
                os.kill(killed[0], signal.SIGKILL)

        outcome = run(two(), kept, on_progress=kill_parent)
        assert (outcome.status, outcome.warm, len(killed)) == ("ok", True, 1)
        assert all_gone(killed)
        assert run(two(), kept).warm
        assert kept_pids(kept) != tuple(killed)


def test_a_parent_that_was_killed_while_it_imported_is_replaced(two):
    plan = two()
    (plan.run_dir / "logs").mkdir(parents=True)
    with WarmParents() as kept:
        kept._parent(plan)
        (importing,) = kept_pids(kept)
        os.kill(importing, signal.SIGKILL)
        assert all_gone([importing])
        assert run(plan, kept).warm


def warm_parents_of(pid):
    """Warm parents among the descendants, with the agents and ranks that were forked from them."""
    found = []
    for process in descendants(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"harness.engine.warm_parent" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                found.append(process.pid)
    return found


def test_ctrl_c_while_the_parent_imports_starts_nothing(make_plan):
    plan = make_plan(RANK, "unused", "ok")
    with started_harness(plan, "--warm") as harness:
        started = wait_until(lambda: warm_parents_of(harness.pid), 20.0)
        harness.send_signal(signal.SIGINT)
        asked = time.monotonic()
        output, _ = harness.communicate(timeout=15)
    outcome = LaunchOutcome.model_validate_json(output)
    assert (outcome.status, outcome.signal, outcome.warm) == ("interrupted", signal.SIGINT, False)
    assert time.monotonic() - asked < 3.0
    assert all_gone(started)
    assert not list((plan.run_dir / "ranks").glob("pid_*"))


THREAD = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
UNFIT = {
    # A library may start a thread in every forked child: the parent itself is fit, its agents are not.
    "thread in an agent": (f"import os, threading, time\nos.register_at_fork(after_in_child=lambda: {THREAD})\n", 1,
                           "other threads "),
    "thread in the parent": (f"{WITHOUT_MEGATRON}import threading, time\nif any('warm_parent' in word for word in sys.orig_argv):\n    {THREAD}\n", 0,
                             "other threads "),
    "no import": ("import sys\nsys.modules['megatron'] = None\n", 0, "code 1; see logs/launcher.log"),
}  # fmt: skip


@pytest.mark.parametrize(("custom", "num_kept", "reason"), [
    pytest.param(*row, id=name, marks=pytest.mark.long if "in the parent" in name else ()) for name, row in UNFIT.items()
])  # fmt: skip
def test_a_parent_that_cannot_serve_gives_way_to_a_fresh_torchrun_with_a_note(two, tmp_path, custom, num_kept, reason):
    (tmp_path / "sitecustomize.py").write_text(custom)
    with WarmParents() as kept:
        for _ in range(1 + num_kept):
            plan = two({"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"})
            outcome = run(plan, kept)
            assert (outcome.status, outcome.warm) == ("ok", False), plan.launcher_log.read_text()
            (note,) = outcome.notes
            assert reason in note
            assert len(kept_pids(kept)) == num_kept
