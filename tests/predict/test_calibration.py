"""Constants fitted to runs that were made up with known constants."""

from dataclasses import replace

import pytest

from harness.predict.calibration import Observation, fit, left_out
from harness.predict.prediction import BOUNDS, BUILT_IN, EFFICIENCIES, Constants, calibrated
from harness.predict.stages import Composer
from harness.predict.time_model import Clock
from harness.records.trace import OpCost

TRUE = Constants(
    allocator_bytes=300_000_000,
    speeds={"gemm_bf16": 0.62, "gemm_low_precision": 0.5, "attention": 0.44, "memory": 0.71, "link": 0.9},
)
# Seconds of work that a run spends on each efficiency at 100 %, by what bounds it; h100's peaks.
H100_FLOPS, H100_BYTES_S, NVLINK = 989e12, 3.35e12, 450e9


def ops(gemm=0.0, fp8=0.0, attention=0.0, memory=0.0, link=0.0) -> tuple[OpCost, ...]:
    """Work of one layer and pass, in seconds at full speed."""
    return (
        OpCost(phase="forward", kind="gemm", dtype="bf16", flops=int(gemm * H100_FLOPS)),
        OpCost(phase="forward", kind="gemm", dtype="fp8", flops=int(fp8 * 2 * H100_FLOPS)),
        OpCost(phase="backward", kind="attention", dtype="bf16", flops=int(attention * H100_FLOPS)),
        OpCost(phase="backward", kind="elementwise", dtype="bf16", bytes=int(memory * H100_BYTES_S)),
        OpCost(phase="backward", kind="comm", dtype="bf16", comm_bytes=int(link * NVLINK), comm_group="tp"),
    )


@pytest.fixture
def observe(spec_of, by_hand):
    """``observe("name", gemm=0.1, ...)``: a run of 80 layers with that work in each, as ``TRUE`` would measure it."""

    def make(name: str, truth: Constants = TRUE, more_bytes: int = 0, outside=(), **work: float) -> Observation:
        spec = spec_of()
        composer = Composer(spec, "transformer_engine")
        traces = {
            case.key: trace.model_copy(
                update={"ops": tuple(op.model_copy(update={
                    field: getattr(op, field) * case.num_layers for field in ("flops", "bytes", "comm_bytes")
                } | {"count": case.num_layers}) for op in ops(**work))}
            )
            for case, trace in ((case, by_hand([case]).even[case.key]) for case in composer.cases())
        }  # fmt: skip
        costs = composer.chunk_costs(traces)
        run = Observation(name, spec, costs, dict.fromkeys(range(len(costs)), 0), tuple(outside))
        peaks = {pp_rank: peak + more_bytes for pp_rank, peak in run.predicted_peaks(truth).items()}
        return replace(run, peaks=peaks, step_s=Clock(spec, truth.efficiency(spec.gpu)).step(costs).likely_s)

    return make


@pytest.fixture
def varied(observe):
    """Six runs whose steps consist of different things."""
    return [
        observe("gemm", gemm=0.1, memory=0.01),
        observe("fp8", fp8=0.1, gemm=0.02, memory=0.01),
        observe("long", gemm=0.05, attention=0.2, memory=0.02),
        observe("norms", gemm=0.03, memory=0.1),
        observe("wide", gemm=0.05, link=0.05, memory=0.01),
        observe("mixed", gemm=0.05, fp8=0.03, attention=0.04, memory=0.03, link=0.02),
    ]


def values(fitted):
    return {constant.name: constant.value for constant in fitted}


def test_known_constants_are_recovered_and_nothing_is_left_of_the_error(varied):
    fitted = fit("h100", varied)
    found, after = values(fitted), calibrated(fitted)
    assert found["allocator_bytes"] == pytest.approx(300_000_000, abs=2)
    for name in EFFICIENCIES:
        assert found[name] == pytest.approx(TRUE.speeds[name], rel=1e-3), name
    assert max(abs(run.time_error(BUILT_IN)) for run in varied) > 0.05
    for run in varied:
        assert run.time_error(after) == pytest.approx(0, abs=1e-3)
        assert run.peak_error(after) == pytest.approx(0, abs=1e-6)


def test_a_run_left_out_is_predicted_by_the_others(observe):
    runs = [observe(str(i), gemm=0.1, memory=0.01) for i in range(3)]
    odd = observe("slow", replace(TRUE, speeds={**TRUE.speeds, "gemm_bf16": 0.31}), gemm=0.1, memory=0.01)
    *_, without_odd = left_out("h100", [*runs, odd])
    assert runs[0].time_error(without_odd) == pytest.approx(0, abs=0.01)
    assert odd.time_error(without_odd) == pytest.approx(-0.5, abs=0.06)
    assert left_out("h100", runs[:2]) == (None, None)


def test_constants_that_vary_together_or_that_no_step_depends_on_are_not_fitted(observe):
    alike = [observe(str(i), gemm=0.05 * i, attention=0.02 * i) for i in range(1, 5)]
    found = {c.name: c for c in fit("h100", alike)}
    assert found["gemm_bf16"].value is not None
    assert found["attention"].value is None and "separable" in found["attention"].reason
    found = {c.name: c for c in fit("h100", [observe("gemm", gemm=0.1), observe("more", gemm=0.2)])}
    assert found["attention"].value is None
    found = {c.name: c for c in fit("h100", [observe("one", gemm=0.05, attention=0.02, memory=0.03)])}
    assert [name for name in EFFICIENCIES if found[name].value is not None] == ["gemm_bf16"]


def test_a_constant_never_leaves_its_bounds_and_says_when_it_wants_to(observe):
    slow = replace(TRUE, speeds={**TRUE.speeds, "gemm_bf16": 0.01})
    found = {c.name: c for c in fit("h100", [observe("slow", slow, gemm=0.1, more_bytes=9 * 2**30)])}
    assert found["gemm_bf16"].value == pytest.approx(BOUNDS["gemm_bf16"][0])
    assert found["allocator_bytes"].value == BOUNDS["allocator_bytes"][1]
    assert all("bound" in found[name].reason for name in ("gemm_bf16", "allocator_bytes"))


def test_memory_outside_of_the_allocator_is_the_median_over_ranks(observe):
    found = values(fit("h100", [observe("run", gemm=0.1, outside=(10**9, 2 * 10**9, 4 * 10**9))]))
    assert found["outside_allocator_bytes"] == 2 * 10**9
    assert values(fit("h100", [observe("run", gemm=0.1)]))["outside_allocator_bytes"] is None


def test_probed_constants_keep_their_values_and_free_a_run_for_the_rest(observe):
    truth = replace(TRUE, speeds={**TRUE.speeds, "call_s": 50e-6, "step_s": 0.005})
    short = {"gemm": 2e-6, "memory": 1e-6}
    runs = [observe("short", truth, **short), observe("memory", truth, gemm=0.03, memory=0.1)]
    probed = {"gemm_bf16": 0.62, "call_s": 50e-6}
    found = {c.name: c for c in fit("h100", runs, probed)}
    assert {name: found[name].value for name in probed if "measured" in found[name].reason} == probed
    assert found["memory"].value == pytest.approx(0.71, rel=0.01)
    assert found["step_s"].reason.startswith("not separable")
    assert "step_s" not in {c.name for c in fit("h100", runs)}
    more = {c.name: c for c in fit("h100", [*runs, observe("mixed", truth, gemm=2e-6, memory=0.001)], probed)}
    assert more["step_s"].value == pytest.approx(0.005, rel=0.05)
    assert calibrated(more.values()).efficiency("h100").call_s == 50e-6


def test_without_times_no_efficiency_is_touched(observe):
    run = replace(observe("cpu", gemm=0.1), step_s=None)
    reasons = {c.name: c.reason for c in fit("h100", [run]) if c.value is None}
    assert reasons.keys() >= set(EFFICIENCIES) and "step time" in reasons["memory"]


@pytest.mark.parametrize(
    ("size", "is_at_bound"), [(8_000, True), (9_000, False), (2**33 - 9_000, False), (2**33 - 8_000, True)]
)
def test_a_constant_is_at_its_bound_within_a_millionth_of_their_distance(observe, size, is_at_bound):
    assert BOUNDS["outside_allocator_bytes"] == (0, 2**33)
    [found] = [c for c in fit("h100", [observe("run", outside=(size,))]) if c.name == "outside_allocator_bytes"]
    assert (found.value, "bound" in found.reason) == (size, is_at_bound)
