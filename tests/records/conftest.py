"""Records of history with real values."""

from datetime import UTC, datetime, timedelta

import pytest

from harness.records.history import HistoryFigure, HistoryRecord

CASE = "h100/llama3_70b.sft.fp8_cs.32gpu.none"
FIRST = datetime(2026, 1, 1, 2, tzinfo=UTC)


def build_kept(number=0, tflops=709.93, **changes):
    """Run ``number`` of a case, one a day from the first of January on."""
    fields = {
        "run_id": f"run{number:04d}",
        "case": CASE,
        "fingerprint": "0123456789abcdef",
        "started_at": (FIRST + timedelta(days=number)).isoformat(),
        "duration_s": 600.0,
        "status": "ok",
        "metrics": {"tflops_per_gpu": HistoryFigure(value=tflops, stdev=1.5, n=40)} if tflops else {},
        "formula_version": "model-flops-1",
        "git_commit": f"{number:040x}",
        "branch": "main",
        "hostname": "node0",
        "device_name": "NVIDIA H100 80GB HBM3",
        "driver_version": "550.54.15",
        "versions": {"torch": "2.9.1", "megatron-core": "0.16.1"},
    }
    return HistoryRecord(**fields | changes)


@pytest.fixture
def kept():
    """:func:`build_kept`."""
    return build_kept
