"""Recorded runs for sweeps that are judged."""

from typing import Any

import pytest

from harness.records.rank import MemoryRecord
from harness.records.run import RunRecord
from harness.units import GIB


@pytest.fixture(name="runs")
def _runs(make_spec, make_rank, make_record) -> Any:
    """Runs of a setting on eight GPUs: their step times, and the peak of the worst rank, the last one."""

    def build(recompute: str, seconds: list[float], peak_gib: float, **changes: Any) -> list[RunRecord]:
        spec = make_spec(recompute=recompute, num_gpus=changes.pop("num_gpus", 8), parallelism={"tensor_model_parallel_size": 8},
                         batch={"micro_batch_size": 1, "global_batch_size": changes.pop("global_batch_size", 8),
                                "seq_length": changes.pop("seq_length", 4096)}, gpu=changes.pop("gpu", "h100"),
                         measure={"memory_limit_bytes": changes.pop("memory_limit_bytes", None)})  # fmt: skip
        retries = changes.pop("retries", 0)
        found = []
        for each in seconds:
            ranks = tuple(
                make_rank(spec, rank, each, memory=MemoryRecord(
                    meter="cuda", max_allocated_bytes=int((peak_gib - (7 - rank)) * GIB), num_alloc_retries=retries,
                    max_reserved_bytes=int((peak_gib + 1) * GIB)))
                for rank in range(8)
            )  # fmt: skip
            found.append(make_record(spec, ranks=ranks, **changes))
        return found

    return build
