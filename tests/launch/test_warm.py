"""Launches from a warm parent: the real torchrun over forked ranks, with all that holds for a fresh one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from harness.launch.environment import EnvVar
from harness.launch.plan import LaunchPlan
from harness.launch.processes import descendants, identify, is_alive
from harness.launch.replay import execute
from harness.launch.warm import WarmParents
from harness.records.collect import AgentRecord, LaunchOutcome

pytestmark = [pytest.mark.train, pytest.mark.slow]
Plans = Callable[..., LaunchPlan]
FOLDER = Path(__file__).parent


# With this a parent imports torch, but not megatron-core, which ranks of a few lines do not need.
WITHOUT_MEGATRON = """import sys, types
for name in ("harness.engine.rank_run", "megatron.core.ssm.gated_delta_net", "megatron.core.models.mimo",
             "megatron.core.models.gpt.experimental_attention_variant_module_specs"):
    sys.modules[name] = types.ModuleType(name)
"""


@pytest.fixture(name="light", scope="module")
def _light(tmp_path_factory):
    """PYTHONPATH of parents that do not import megatron-core."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "sitecustomize.py").write_text(WITHOUT_MEGATRON)
    return f"{folder}:{Path.cwd()}"


@pytest.fixture(scope="module")
def parents():
    """Kept over the tests, as a sweep keeps them over its cells."""
    with WarmParents() as kept:
        yield kept


@pytest.fixture
def plans(make_plan, tmp_path):
    """A new plan in a folder of its own whose two ranks run ``script`` with the arguments; ``env`` over a plain one."""
    numbers = count()

    def make(script, *arguments, env=None, **changes):
        shell: dict[str, str | None] = {
            **os.environ,
            "PYTHONPATH": str(Path.cwd()),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        shell |= {"TORCHDYNAMO_DISABLE": "1", "PYTHONSAFEPATH": "1", "PYTHONFAULTHANDLER": "1", **(env or {})}
        variables = tuple(
            EnvVar(name, value, "inherited", "inherited") for name, value in sorted(shell.items()) if value is not None
        )
        run_dir = tmp_path / f"run_{next(numbers)}"
        run_dir.mkdir()
        plan = make_plan(env=variables, run_dir=run_dir, without_gpu=True, **changes)
        return replace(plan, worker=(str(FOLDER / script), str(run_dir), *arguments))

    return make


@pytest.fixture
def two(plans, light):
    """Ranks that heartbeat and then do what the arguments say. Their parent does not import megatron-core."""

    def make(*behaviour, env=None, **changes):
        return plans("scripted_rank.py", *behaviour, env={"PYTHONPATH": light} | (env or {}), **changes)

    return make


def run(plan, parents):
    return execute(plan, on_progress=lambda _: None, parents=parents)


def kept_pids(parents):
    """Process ids of the parents that are kept, the last used one at the end."""
    return tuple(parent.process.pid for parent in parents._parents.values())


def pids(plan):
    """The pids of both ranks, once they have written them down."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        written = [path.read_text() for path in (plan.run_dir / "ranks").glob("pid_*")]
        if len(written) == 2 and all(written):
            return [int(text) for text in written]
        time.sleep(0.02)
    raise AssertionError(plan.launcher_log.read_text())


def all_gone(numbers, within_s=8.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any((p := identify(n)) is not None and is_alive(p) for n in numbers):
            return True
        time.sleep(0.05)
    return False


def warm_parents_of(pid):
    """Warm parents among the descendants, with the agents and ranks that were forked from them."""
    return [p.pid for p in descendants(pid) if b"harness.engine.warm_parent" in _command(p.pid)]


def _command(pid):
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_ranks_that_end_well_are_ok_and_the_outcome_says_that_they_were_forked(two, parents):
    plan = two("ok")
    outcome = run(plan, parents)
    assert (outcome.status, outcome.exit_code, outcome.num_killed, outcome.warm) == ("ok", 0, 0, True)
    assert outcome.agent == AgentRecord.model_validate_json(plan.agent_file.read_text())
    assert outcome.notes == ("ranks were forked from a warm parent, so their times contain no imports",)


@pytest.mark.long
def test_an_agent_in_which_a_thread_has_appeared_gives_way_to_a_fresh_torchrun(two, tmp_path):
    """A library may start a thread in every forked child: the parent itself is fit, its agents are not."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, threading, time\n"
        "start = lambda: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "os.register_at_fork(after_in_child=start)\n"
    )
    plan = two("ok", env={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"})
    with WarmParents() as fit:
        outcome = run(plan, fit)
        assert len(kept_pids(fit)) == 1
    assert (outcome.status, outcome.warm) == ("ok", False), plan.launcher_log.read_text()
    [note] = outcome.notes
    assert note.startswith("started from a fresh torchrun instead of a warm parent: 1 other thread runs in process")


def test_the_exit_code_of_a_rank_is_kept(two, parents):
    outcome = run(two("exit3", "1"), parents)
    assert (outcome.status, outcome.exit_code, outcome.rank, outcome.warm) == ("failed", 1, 1, True)
    assert outcome.agent is not None
    exits = {r.rank: (r.exit_code, r.signal) for r in outcome.agent.failures}
    assert exits.pop(1) == (3, None)
    assert exits in ({0: (-15, "SIGTERM")}, {})  # torch 2.6 does not count whom it ended itself


def test_a_killed_rank_is_named_and_the_other_is_stopped(two, parents):
    plan = two("killed", "0")
    outcome = run(plan, parents)
    assert (outcome.reason, outcome.warm) == ("rank 0 was killed by SIGKILL", True)
    assert all_gone(pids(plan), within_s=0.5)


@pytest.mark.long
def test_a_hung_rank_shows_its_stack_and_is_stopped(two, parents):
    plan = two("hang", "1", hang_timeout_s=1.0)
    outcome = run(plan, parents)
    assert (outcome.status, outcome.rank, outcome.warm) == ("hang", 1, True)
    assert outcome.agent is not None
    assert outcome.agent.status == "signalled"
    assert "blocked_for_ever" in (plan.run_dir / "logs" / "rank_001.log").read_text()
    assert all_gone(pids(plan), within_s=0.5)


def test_a_taken_port_is_reported_in_words_and_no_prepared_rank_is_left(two, parents):
    plan = two("ok")
    with socket.socket() as other:
        other.bind(("", plan.rendezvous.master_port))
        other.listen()
        outcome = run(replace(plan, rendezvous=replace(plan.rendezvous, chosen_port=False)), parents)
    assert (outcome.status, outcome.num_killed, outcome.warm) == ("failed", 0, True)
    assert outcome.reason is not None
    assert "EADDRINUSE" in outcome.reason


def test_no_rank_outlives_the_agent(two, parents):
    plan = two("stubborn")
    killed: list[int] = []

    def kill_agent(_):
        if not killed:
            killed.append(int(Path(f"/proc/{pids(plan)[0]}/stat").read_text().rpartition(")")[2].split()[1]))
            os.kill(killed[0], signal.SIGKILL)

    outcome = execute(plan, on_progress=kill_agent, parents=parents)
    assert (outcome.status, outcome.exit_code, outcome.agent) == ("failed", -signal.SIGKILL, None)
    assert all_gone(pids(plan), within_s=0.5)


def test_a_rank_finds_what_a_fresh_one_finds_whatever_the_launch_before_it_did(plans, parents):
    """Without OMP_NUM_THREADS, which torchrun then sets, and which is read while libraries load."""

    def launched(kept):
        plan = plans("scripted_facts.py", env={"OMP_NUM_THREADS": None})
        outcome = run(plan, kept)
        assert (outcome.status, outcome.warm) == ("ok", kept is not None), plan.launcher_log.read_text()
        read = [
            [json.loads((plan.run_dir / "ranks" / f"{kind}_{rank}.json").read_text()) for rank in (0, 1)]
            for kind in ("facts", "own")
        ]
        return read[0], read[1]

    fresh, _ = launched(None)
    first, own_of_first = launched(parents)
    second, own_of_second = launched(parents)
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
        assert run(two("ok"), kept).warm
        first = kept_pids(kept)
        assert run(two("ok"), kept).warm
        assert (kept_pids(kept), len(first)) == (first, 1)
        assert run(two("ok", env=environments[0]), kept).warm
        second = kept_pids(kept)[1:]
        assert kept_pids(kept) == first + second
        assert run(two("ok"), kept).warm
        assert run(two("ok", env=environments[1]), kept).warm
        third = kept_pids(kept)[1:]
        assert kept_pids(kept) == first + third
        assert all_gone([*second], within_s=0.1)
    assert all_gone([*first, *third], within_s=0.1)


@pytest.mark.long
def test_a_launch_outlives_its_parent_and_the_next_one_gets_a_new_parent(two):
    with WarmParents() as kept:
        killed: list[int] = []

        def kill_parent(_):
            if not killed:
                killed.extend(kept_pids(kept))
                os.kill(killed[0], signal.SIGKILL)

        outcome = execute(two("ok"), on_progress=kill_parent, parents=kept)
        assert (outcome.status, outcome.warm, len(killed)) == ("ok", True, 1)
        assert all_gone(killed)
        assert run(two("ok"), kept).warm
        assert kept_pids(kept) != tuple(killed)


def test_a_parent_that_was_killed_while_it_imported_is_replaced(two):
    plan = two("ok")
    (plan.run_dir / "logs").mkdir(parents=True)
    with WarmParents() as kept:
        kept._parent(plan)
        (importing,) = kept_pids(kept)
        os.kill(importing, signal.SIGKILL)
        assert all_gone([importing])
        assert run(plan, kept).warm


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, "interrupted"), (signal.SIGKILL, None)])
def test_nothing_outlives_the_harness(make_plan, two_ranks, light, number, status):
    plan = make_plan()
    command = [sys.executable, str(FOLDER / "scripted_harness.py"), "--warm", str(plan.run_dir), plan.python, two_ranks,
               str(plan.run_dir), "hang"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": light}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as harness:
        try:
            ranks = pids(plan)
            started = [*ranks, *(p.pid for p in descendants(harness.pid))]
            assert len(warm_parents_of(harness.pid)) >= 1
            harness.send_signal(number)
            output, _ = harness.communicate(timeout=15)
        finally:
            with suppress(ProcessLookupError):
                harness.kill()
    assert all_gone(started)
    assert (json.loads(output)["status"] if output else None) == status


def test_ctrl_c_while_the_parent_imports_starts_nothing(make_plan, two_ranks):
    plan = make_plan()
    command = [sys.executable, str(FOLDER / "scripted_harness.py"), "--warm", str(plan.run_dir), plan.python, two_ranks,
               str(plan.run_dir), "ok"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as harness:
        deadline = time.monotonic() + 20
        while not (started := warm_parents_of(harness.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        harness.send_signal(signal.SIGINT)
        asked = time.monotonic()
        output, _ = harness.communicate(timeout=15)
    outcome = LaunchOutcome.model_validate_json(output)
    assert (outcome.status, outcome.signal, outcome.warm) == ("interrupted", signal.SIGINT, False)
    assert outcome.reason == "interrupted by SIGINT before anything ran"
    assert time.monotonic() - asked < 3.0
    assert all_gone(started)
    assert not list((plan.run_dir / "ranks").glob("pid_*"))


def test_a_parent_with_a_thread_refuses_and_a_fresh_torchrun_takes_over_with_a_note(two, tmp_path):
    custom = tmp_path / "custom"
    custom.mkdir()
    (custom / "sitecustomize.py").write_text(
        f"{WITHOUT_MEGATRON}import threading, time\n"
        "if any('warm_parent' in word for word in sys.orig_argv):\n"
        "    threading.Thread(target=time.sleep, args=(600,), name='careless', daemon=True).start()\n"
    )
    environment = {"PYTHONPATH": f"{custom}:{Path.cwd()}"}
    with WarmParents() as kept:
        outcome = run(two("ok", env=environment), kept)
        assert (outcome.status, outcome.warm) == ("ok", False)
        (note,) = outcome.notes
        assert note.startswith("started from a fresh torchrun instead of a warm parent: 1 other thread runs in process")
        assert kept_pids(kept) == ()
        again = run(two("ok", env=environment), kept)
        assert (again.status, again.warm, len(again.notes)) == ("ok", False, 1)


@pytest.mark.long
def test_a_parent_that_cannot_import_is_reported_and_not_tried_again(two, tmp_path):
    broken = tmp_path / "broken" / "megatron"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no megatron today')\n")
    environment = {"PYTHONPATH": f"{broken.parent}:{Path.cwd()}"}
    with WarmParents() as kept:
        for _ in range(2):
            plan = two("ok", env=environment)
            outcome = run(plan, kept)
            assert (outcome.status, outcome.warm, kept_pids(kept)) == ("ok", False, ())
            (note,) = outcome.notes
            assert "the warm parent exited with code 1; see logs/launcher.log" in note
        assert "no megatron today" not in plan.launcher_log.read_text()
