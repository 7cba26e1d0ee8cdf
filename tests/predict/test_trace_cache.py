from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.predict.trace_cases import CachedTrace, TraceCache, tracer_fingerprint

TRACE = CachedTrace(megatron_core="0.16.1", torch="2.13", refused="a defect")


@pytest.fixture
def cache(tmp_path) -> TraceCache:
    return TraceCache(tmp_path / "traces")


def test_what_was_written_is_read(cache):
    cache.write("k", 1.0, TRACE)
    assert cache.read("k", 1.0) == TRACE


def test_uneven_routing_has_entries_of_its_own(cache):
    cache.write("k", 1.0, TRACE)
    assert cache.read("k", 1.25) is None


@pytest.mark.parametrize("content", ["", "{", '{"megatron_core": "0.16.1"}', "[]"])
def test_a_damaged_entry_counts_as_missing(cache, content):
    cache.write("k", 1.0, TRACE)
    (cache.folder / "k-1.json").write_text(content)
    assert cache.read("k", 1.0) is None


def test_many_writers_of_one_entry_leave_it_whole(cache):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: cache.write("k", 1.0, TRACE), range(50)))
    assert cache.read("k", 1.0) == TRACE
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
    (package / changed).write_text("x = 2\n")
    assert (tracer_fingerprint(package, ("0.16.1",)) == before) is same


def test_another_megatron_core_makes_old_traces_stale(package):
    assert tracer_fingerprint(package, ("0.16.1",)) != tracer_fingerprint(package, ("0.17.0",))
