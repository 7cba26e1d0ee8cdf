"""Tracers that stay between requests answer as new ones do, and end with those who asked."""

from dataclasses import replace
from threading import Event

import pytest

from harness.errors import RunFailedError
from harness.launch.environment import this_host
from harness.predict.tracer import Tracing
from harness.predict.tracer_processes import TracerLateError, WarmTracers
from harness.records.trace import TraceCase, TraceFile, TraceRequest


@pytest.fixture
def cases(make_spec):
    spec = make_spec()
    return tuple(TraceCase(key=f"k{n}", spec=spec, layer_kind="dense", num_layers=n) for n in (1, 2))


@pytest.mark.train
def test_one_process_answers_all_requests_as_new_processes_do(cases):
    new = Tracing(this_host(), None).traces(cases, "local").even
    stop, seen = Event(), []
    with WarmTracers(this_host(), 100.0, stop) as warm:
        tracing = Tracing(this_host(), None, stop=stop, warm=warm, progress=lambda *counts: seen.append(counts))
        first, again = tracing.traces(cases, "local").even, tracing.traces(cases[::-1], "local").even
        ((process, _),) = warm._processes.values()
        assert process.poll() is None
    assert first == again == new
    assert set(new) == {"k1", "k2"}
    assert seen[0] == (0, 2)
    assert process.returncode == -9


@pytest.mark.train
def test_a_stopped_request_ends_and_leaves_no_process(cases):
    stop = Event()
    stop.set()
    request = TraceRequest(cases=cases, implementation="local")
    with WarmTracers(this_host(), 100.0, stop) as warm, pytest.raises(TracerLateError):
        warm.answer(request, lambda _: None)
    assert all(process.poll() is not None for process, _ in warm._processes.values())


@pytest.mark.parametrize(("python", "error", "why"), [
    ("exit 7", RunFailedError, r"\(exit 7\)"),
    ("cat > /dev/null", TracerLateError, r"0\.2 s"),
])  # fmt: skip
def test_a_process_that_dies_or_hangs_is_named(cases, program, python, error, why):
    limit = 0.2 if error is TracerLateError else 100.0
    host = replace(this_host(), python=program(python))
    with WarmTracers(host, limit, Event()) as warm, pytest.raises(error, match=why):
        warm.answer(TraceRequest(cases=cases, implementation="local"), lambda _: None)


@pytest.mark.train
def test_a_request_that_fails_leaves_the_process_for_the_next_one(cases):
    with WarmTracers(this_host(), 100.0, Event()) as warm:
        bad = TraceRequest(cases=cases, implementation="local").model_copy(update={"imbalance": 0.5})
        with pytest.raises(RunFailedError, match=r"\(exit 1\)"):
            warm.answer(bad, lambda _: None)
        good = TraceFile.model_validate_json(
            warm.answer(TraceRequest(cases=cases, implementation="local"), lambda _: None)
        )
    assert set(good.chunks) == {"k1", "k2"}
