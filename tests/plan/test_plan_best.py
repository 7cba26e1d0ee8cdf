"""Which of several layouts is recommended."""

from dataclasses import replace

import pytest

from harness.experiment.software import Software
from harness.plan.run import Layout, Planned
from harness.planning.device import device_needs
from harness.planning.search import Limits, Traces, candidates, plan, required_cases
from harness.records.trace import ChunkTrace, OpCost, TraceCase

TE = "transformer_engine"
SOFTWARE = Software(megatron_core="0.16.1", transformer_engine="2.11", torch="2.9")


def trace_of(case: TraceCase) -> ChunkTrace:
    return ChunkTrace(
        saved_bytes=10**9, forward_peak_bytes=10**9, backward_peak_bytes=10**8, persistent_bytes=0, hidden_bytes=10**6,
        num_parameters_dense=10**8, num_parameters_expert=0, parameter_bytes=2 * 10**8,
        ops=(OpCost(phase="forward", kind="gemm", dtype="bf16", flops=10**13),),
    )  # fmt: skip


@pytest.fixture
def planned(make_spec):
    spec = make_spec(compute_dtype="bf16", recompute="none", kernels={"transformer_impl": TE})
    found = candidates(spec, SOFTWARE, TE)
    traces = Traces({case.key: trace_of(case) for case in required_cases(found, TE)}, None, {})

    def made(verdict: str):
        first = plan(spec, found, traces, Limits(None), TE, SOFTWARE)
        peak = max(row.prediction.peak_bytes for row in first.rows if row.prediction)
        capacity = peak * 2 if verdict == "FITS" else peak + 10
        return plan(spec, found, traces, Limits(device_needs(spec).device_bytes(capacity), margin=0.0), TE, SOFTWARE)

    return made


def test_a_tight_layout_is_not_recommended_where_another_fits(planned):
    tight, fits = planned("TIGHT"), planned("FITS")
    assert (tight.recommended.verdict, fits.recommended.verdict) == ("TIGHT", "FITS")
    slower = replace(fits, spec=fits.spec.model_copy(update={"batch": fits.spec.batch.model_copy(update={
        "seq_length": fits.spec.batch.seq_length // 2})}))  # fmt: skip
    layouts = (Layout("tight", None, tight), Layout("fits", None, slower))
    assert Planned(layouts).best.name == "fits"
    assert Planned(layouts[:1]).best.name == "tight"
