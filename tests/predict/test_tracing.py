"""Tracer processes and their answers: progress, answers in threads, and what the cache keeps."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Event, Timer

import pytest

from harness.errors import RunFailedError
from harness.launch.environment import this_host
from harness.predict.trace_cases import CachedTrace, TraceCache, tracer_fingerprint
from harness.predict.tracer import Tracing, side_by_side
from harness.records.trace import TraceCase
from tests.waiting import runs, wait_until

# Declines every case, after a note that it is done, and goes on for longer than the harness waits before it looks.
SCRIPTED = """import json, pathlib, sys, time
for line in sys.stdin:
    folder = pathlib.Path(line.strip())
    cases = [case["key"] for case in json.loads((folder / "request.json").read_text())["cases"]]
    (folder / "answer.done").write_text("." * len(cases))
    time.sleep(0.3)
    answer = {"megatron_core": "1", "torch": "2", "chunks": {}, "refused": dict.fromkeys(cases, "declined"), "seconds": 0.1}
    (folder / "answer.json").write_text(json.dumps(answer))
    (folder / "exit").write_text("0")
"""


@pytest.fixture
def cases(make_spec):
    spec = make_spec()
    return tuple(TraceCase(key=f"k{i}", spec=spec, layer_kind="dense", num_layers=1) for i in range(64))


def test_an_answer_of_another_mbr_perf_is_a_failed_run_and_says_what_to_do(program, cases):
    changed = SCRIPTED.replace('"refused"', '"declined"')
    host = replace(this_host(), python=program(changed, sys.executable), num_cores=1)
    with pytest.raises(RunFailedError, match=r"cannot be read\n.* again"):
        Tracing(host, None).traces(cases, "local")


def test_tracers_report_how_many_cases_are_done_and_what_they_decline_is_kept(tmp_path, program, cases, make_spec):
    seen, host = [], replace(this_host(), python=program(SCRIPTED, sys.executable), num_cores=2)
    counting = Tracing(host, TraceCache(tmp_path / "traces"), progress=lambda *counts: seen.append(counts))
    counting.traces(cases, "local", imbalance=1.25)  # without experts all tokens are even
    assert seen[-1] == (64, 64)
    kept = replace(counting, cached_only=True).traces(cases, "local")
    assert kept.refused == {case.key: "declined" for case in cases}
    seen.clear()
    spec = make_spec()
    experts = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 1024}
    spec = make_spec(model=spec.model.model_dump() | {"moe": experts})
    with_experts = tuple(case.model_copy(update={"spec": spec, "layer_kind": "moe"}) for case in cases)
    replace(counting, cache=None).traces(with_experts, "local", imbalance=1.25)
    assert {num_due for _, num_due in seen} == {128}
    assert seen[0] == (0, 128)
    assert seen[-1] == (128, 128)


STARTER = """
import os, subprocess, sys, time
tracer = subprocess.Popen(
    (sys.executable, "-m", "harness.engine.trace", "--request", sys.argv[1], "--out", "/dev/null"),
    start_new_session=True, env={**os.environ, "MBR_PERF_PARENT_PID": str(os.getpid())},
)
print(tracer.pid, flush=True)
time.sleep(100)
"""


def test_a_tracer_dies_with_a_harness_that_is_killed(tmp_path):
    os.mkfifo(tmp_path / "request")  # the tracer waits for ever for what nobody writes
    starter = subprocess.Popen((sys.executable, "-c", STARTER, str(tmp_path / "request")), stdout=subprocess.PIPE)
    tracer = int(starter.stdout.readline())
    try:
        time.sleep(1)
        starter.kill()
        starter.wait()
        assert wait_until(lambda: not runs(tracer), 60.0)
    finally:
        starter.stdout.close()
        with suppress(ProcessLookupError):
            os.kill(tracer, 9)


def test_answers_come_in_the_order_of_the_questions():
    assert side_by_side(lambda number: number * number, (3, 1, 2), 2, Event()) == [9, 1, 4]


def test_an_interruption_stops_the_calls_under_way_and_begins_no_other():
    stop, begun = Event(), []

    def ask(number: int) -> bool:
        begun.append(number)
        return stop.wait(60)

    Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        side_by_side(ask, range(5), 2, stop)
    assert time.monotonic() - before < 20
    assert sorted(begun) == [0, 1]


def test_a_call_that_fails_stops_the_others():
    stop = Event()

    def ask(fails: bool) -> bool:
        if fails:
            raise ValueError("broken")
        return stop.wait(60)

    before = time.monotonic()
    with pytest.raises(ValueError, match="broken"):
        side_by_side(ask, (True, False), 2, stop)
    assert time.monotonic() - before < 20


TRACE = CachedTrace(megatron_core="0.16.1", torch="2.13", refused="a defect")


@pytest.fixture
def cache(tmp_path) -> TraceCache:
    return TraceCache(tmp_path / "traces")


@pytest.mark.parametrize("content", ["", "{", '{"megatron_core": "0.16.1"}', "[]"])
def test_a_damaged_entry_counts_as_missing(cache, content):
    cache.write("k", 1.0, TRACE)
    (cache.folder / "k-1.json").write_text(content)
    assert cache.read("k", 1.0) is None


def test_many_writers_of_one_entry_leave_it_whole_and_uneven_routing_has_entries_of_its_own(cache):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: cache.write("k", 1.0, TRACE), range(50)))
    assert (cache.read("k", 1.0), cache.read("k", 1.25)) == (TRACE, None)
    assert [file.name for file in cache.folder.iterdir()] == ["k-1.json"]


@pytest.fixture
def package(tmp_path):
    for name in ("engine/trace.py", "experiment/gpu.py", "records/trace.py", "show/json.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("x = 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "same"),
    [("engine/trace.py", False), ("experiment/gpu.py", False), ("records/trace.py", False), ("show/json.py", True)],
)
def test_only_what_decides_a_trace_makes_old_ones_stale(package, changed, same):
    before = tracer_fingerprint(package, ("0.16.1",))
    assert tracer_fingerprint(package, ("0.17.0",)) != before
    (package / changed).write_text("x = 2\n")
    assert (tracer_fingerprint(package, ("0.16.1",)) == before) is same
