"""Cases of failed jobs, built from real specs and torch's own messages."""

import json
from typing import Any

import pytest

from harness.diagnose.values import Case, RankFigures
from harness.failures.classify import Ending, classify
from harness.records.prediction import PredictionRecord, StagePrediction
from harness.units import GIB

SETTING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
FRAGMENTED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.07 GiB is free. Including non-PyTorch memory, this process has 78.03 GiB memory in use. Of the allocated "
    "memory 54.02 GiB is allocated by PyTorch, and 20.41 GiB is reserved by PyTorch but unallocated."
)
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 3 has a total capacity of 79.11 GiB of "
    "which 1.94 GiB is free. Including non-PyTorch memory, this process has 77.16 GiB memory in use. Of the allocated "
    "memory 73.48 GiB is allocated by PyTorch, and 812.44 MiB is reserved by PyTorch but unallocated."
)


@pytest.fixture
def case(make_spec):
    """A job of Llama 3 70B on 32 H100; ``text`` is its failure message, ``settings`` change its spec."""

    def build(text: str = "", settings: dict[str, Any] | None = None, **changes: Any) -> Case:
        expandable = changes.get("expandable_segments")
        verdict = classify(text, Ending(expandable_segments=expandable))
        fields: dict[str, Any] = {
            "name": "job",
            "origin": "run",
            "status": "oom" if verdict.is_oom else "failed" if text else "ok",
            "verdict": verdict,
            "spec": make_spec(**settings or {}),
            "said": text,
        }
        return Case(**fields | changes)

    return build


@pytest.fixture
def diagnosed(mbr_perf, tmp_path, request):
    """Diagnose a log with these lines, which has the name that its module has in LOG."""

    def diagnose(*lines: str) -> Any:
        log = tmp_path / request.module.LOG
        log.write_text("\n".join(lines) + "\n")
        return json.loads(mbr_perf("diagnose", log, "--json").out)

    return diagnose


@pytest.fixture
def figures():
    """Ranks by (stage, allocated GiB)."""

    def build(*rows: tuple[int, float]) -> tuple[RankFigures, ...]:
        each = enumerate(rows)
        return tuple(RankFigures(rank, stage, int(gib * GIB), int(gib * GIB)) for rank, (stage, gib) in each)

    return build


@pytest.fixture
def predicted():
    """A prediction with these peaks per stage, in GiB, most of them activations."""

    def build(*totals: float, model_flops: int = 100, recompute_flops: int = 0) -> PredictionRecord:
        stages = tuple(
            StagePrediction(pp_rank=stage, weights=4 * GIB, gradients=4 * GIB, optimizer=8 * GIB, logits=0, transient=0,
                            overhead=0, activations=int((total - 16) * GIB), total=int(total * GIB), peak="backward")
            for stage, total in enumerate(totals)
        )  # fmt: skip
        peak = max(stage.total for stage in stages)
        return PredictionRecord(
            peak_bytes=peak, range_bytes=(peak, peak), stages=stages, model_flops=model_flops,
            recompute_flops=recompute_flops,
        )  # fmt: skip

    return build
