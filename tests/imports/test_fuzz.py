"""Arbitrary logs: an answer, never an error, never NaN in an answer."""

import io
import json
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.compare.figures import judge_log
from harness.compare.foreign import OF_BRIDGE, answer_of
from harness.compare.show import foreign_page
from harness.foreign.golden import read_foreign_golden
from harness.foreign.logs.lines import lines_of
from harness.foreign.logs.sources import LogSource
from harness.foreign.reader import LogReader
from harness.judge.compare import WindowOptions
from harness.judge.gate import comparison_outcome
from harness.show import json as report_json
from tests.commands import piped
from tests.imports.logs import iteration, memory_gb, memory_mb, step_time

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


def answered(log, golden):
    """Compare, and check that the answer is strict JSON."""
    judged = judge_log(log, golden, WindowOptions(), OF_BRIDGE)
    verdict = comparison_outcome(judged.comparison)
    answer = answer_of(judged, verdict)
    json.loads(report_json.text(answer))
    piped(foreign_page(answer))


@pytest.fixture(name="golden", scope="module")
def _golden(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "g.json"
    path.write_text(json.dumps(VALUES))
    return read_foreign_golden(path)


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.data_too_large])
@given(text=LOGS)
def test_arbitrary_logs_are_judged(golden, text):
    log = log_of(text)
    assert all(earlier.number < later.number for earlier, later in pairwise(log.iterations))
    answered(log, golden)
