"""Arbitrary logs and golden files: an answer or a clear refusal, never another error, never NaN in an answer."""

import atexit
import io
import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.compare.figures import judge_log
from harness.compare.foreign import OF_BRIDGE, answer_of
from harness.compare.show import foreign_page
from harness.errors import BadRequestError
from harness.foreign.bridge_goldens import actuals_of, bridge_text
from harness.foreign.golden import read_foreign_golden
from harness.foreign.logs.lines import lines_of
from harness.foreign.logs.sources import LogSource
from harness.foreign.reader import LogReader
from harness.judge.compare import WindowOptions
from harness.judge.gate import comparison_outcome
from harness.show import json as report_json
from tests.commands import piped
from tests.imports.logs import bridge_log, iteration, megatron_lm_log, memory_gb, memory_mb, step_time

WHOLE = [
    step_time(0.9, 700.0), step_time(0.9, "nan"), step_time(1e9, "9" * 24), iteration(1, 5), iteration(2, 5, 0.91),
    iteration(3, 5, loss=float("nan")), iteration(4, 5, loss=None, grad_norm="inf"), iteration(5, 5, 1e30),
    iteration(2, 5, extra=" throughput per GPU (TFLOP/s/GPU): 744.1 |"), iteration(999_999_999, 999_999_999_999),
    memory_gb(0, 1, allocated=25.5, max_allocated=58.8, max_reserved=64.2), memory_gb(9, 2, allocated="1e308"),
    memory_gb(1, 1, allocated="nan", max_allocated="inf"), memory_mb(3, 2, 1.0, 2.0, 3.0, 4.0), "[Rank 0] (after ",
    "iteration 0/ 5 | lm loss: 1 |", "-", " | ", "\n",
    "iteration        4/       5 | consumed samples: nan | number of nan iterations: inf |",
    "exiting program at iteration 5", "using world size: 0", "world_size ........ 8", "| lm loss: 1E+400 |",
]  # fmt: skip
SHREDS = st.one_of(
    st.sampled_from(WHOLE),
    st.tuples(st.sampled_from(WHOLE), st.integers(0, 200)).map(lambda cut: cut[0][: cut[1]]),
    st.sampled_from(["\n", "\n", "\n[rank3]: ", "\r", "\x1b[0m", " "]),
    st.text(max_size=8),
)
LOGS = st.lists(SHREDS, max_size=60).map("".join)

NUMBERS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**400), 10**400), st.floats(allow_nan=False),
    st.sampled_from([700.0, 0.9, "nan", "1", []]),
)  # fmt: skip
NAMES = st.sampled_from([
    "lm loss", "elapsed time per iteration (ms)", "GPU utilization", "values", "start_step", "step_interval",
    "iteration-time", "mem-max-allocated-bytes", "alloc", "max_alloc", "max_reserved", "baseline", "current",
    "08.01.26",
    "99.99.9999", "0", "1", "2", "49", "-1", "007", "٣", "9" * 20, "",
])  # fmt: skip
DOCUMENTS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(st.dictionaries(NAMES, inner, max_size=6), st.lists(inner, max_size=4)),
    max_leaves=25,
)
STEPS = [
    {"lm loss": 11.5, "elapsed time per iteration (ms)": 900.0, "GPU utilization": 700.0},
    {"lm loss": 11.4, "elapsed time per iteration (ms)": 900.0},
    {"GPU utilization": 0.0},
]
VALUES = {str(step): STEPS[step % 3] for step in range(5)} | {"alloc": 1.0, "max_alloc": 0.0, "max_reserved": 9.0}


def log_of(text):
    reader = LogReader()
    reader.sources = ["fuzzed"]
    content = b"log\n" * 1024 + text.encode("utf-8", "surrogatepass")
    for line in lines_of(LogSource("fuzzed", None), io.BufferedReader(io.BytesIO(content))):
        reader.feed(line)
    return reader.finish()


LOG = log_of(bridge_log([700.0] * 5, memory=[(1, WHOLE[10]), (2, WHOLE[13])]) + megatron_lm_log([0.9] * 5))


def answered(log, golden):
    """Compare, and check that the answer is strict JSON."""
    judged = judge_log(log, golden, WindowOptions(), OF_BRIDGE)
    verdict = comparison_outcome(judged.comparison)
    answer = answer_of(log, judged, verdict)
    json.loads(report_json.text(answer))
    piped(foreign_page(answer))


def any_log(text):
    log = log_of(text)
    assert all(earlier.number < later.number for earlier, later in pairwise(log.iterations))
    golden_path().write_text(json.dumps(VALUES))
    answered(log, read_foreign_golden(golden_path()))
    json.loads(bridge_text(actuals_of(log)))


@cache
def golden_path():
    """Return one file for all examples, deleted with the process."""
    folder = TemporaryDirectory(prefix="mbr-perf-fuzz-")
    atexit.register(folder.cleanup)
    return Path(folder.name) / "g.json"


def any_golden(text):
    path = golden_path()
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    golden, refused = None, None
    try:
        golden = read_foreign_golden(path)
    except BadRequestError as error:
        refused = error
    assert golden is not None or str(path) in str(refused)
    if golden is not None:
        answered(LOG, golden)


GOLDENS = st.one_of(DOCUMENTS.map(json.dumps), st.text(max_size=60))


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.data_too_large])
@given(LOGS)
def test_arbitrary_logs_are_judged(text):
    any_log(text)


@settings(max_examples=200, suppress_health_check=[HealthCheck.data_too_large])
@given(DOCUMENTS.map(json.dumps))
def test_arbitrary_golden_files_are_read_or_refused(text):
    any_golden(text)
