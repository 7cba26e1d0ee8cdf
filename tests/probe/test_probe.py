"""`mbr-perf probe`: what it makes of measured operations, and when it refuses to measure."""

import json

import pytest

from harness.experiment.gpu import GPUS
from harness.predict.probing import constants_of
from harness.predict.products import slowdown
from harness.predict.ranges import borrowed
from harness.predict.step_ranges import source_of, sources_of
from harness.predict.time_model import KERNEL_S
from harness.records.calibration import Probe, ProbedRow

H100 = GPUS["h100"]
TRUE = {"gemm_bf16": 0.7, "gemm_low_precision": 0.6, "attention": 0.5, "memory": 0.8, "launch_s": 8e-6, "call_s": 6e-5}


def rows(true, *, host_s=1e-6):
    """Operations as the time model has them."""
    per_s = true["memory"] * H100.memory_bandwidth
    peaks = {"gemm_bf16": 989.4e12, "gemm_low_precision": 1978.9e12, "attention": 989.4e12}
    for name, peak in peaks.items():
        for flops, moved in ((2e12, 2e8), (5e11, 1e8), (1e9, 1e8)):  # the last is bound by memory, and says nothing
            what, output = ("", None) if name == "attention" else ("4096 x 8192 x 1280 forward", (1, 4096, 1280))
            computing = flops / peak / true[name]
            seconds = computing * slowdown(output, 132) + moved / per_s if output else computing
            yield ProbedRow(
                of=name, what=what, flops=flops, moved_bytes=moved, host_s=host_s, seconds=seconds + KERNEL_S
            )
    yield ProbedRow(of="memory", what="copy", flops=0, moved_bytes=2e9, seconds=2e9 / per_s + KERNEL_S, host_s=host_s)
    # Of the model's seconds the processor takes 0.4 for a simple operation and 0.73 for each of a layer's three products.
    for name, share in (("launch_s", 0.4), ("call_s", 3 * 0.7268)):
        seconds = share * true[name]
        yield ProbedRow(of=name, what="", flops=0, moved_bytes=0, seconds=seconds, host_s=seconds)


def test_the_constants_are_those_by_which_the_time_model_made_the_seconds():
    assert constants_of([*rows(TRUE)], H100) == pytest.approx(TRUE, rel=1e-3)


def test_operations_that_the_host_bounds_say_nothing_of_the_gpu():
    assert constants_of([*rows(TRUE, host_s=1.0)], H100).keys() == {"launch_s", "call_s"}


class Scripted:
    """A device: its processes and the bits for its clock at each look."""

    def __init__(self, processes, *bits):
        self._processes, self._bits = processes, iter(bits)

    def processes(self):
        return self._processes

    def sm_clock_mhz(self):
        return 1700

    def clock_reasons(self):
        return next(self._bits)


@pytest.mark.train
@pytest.mark.parametrize(
    ("processes", "bits", "problem"),
    [({}, 0x04, ""), ({}, 0x20, "sw_thermal_slowdown"), ({}, 0x88, "hw_slowdown, hw_power_brake_slowdown"),
     ({1: 2**30}, 0, "processes")],
)  # fmt: skip
def test_only_a_gpu_at_its_own_pace_is_measured(processes, bits, problem):
    from harness.engine.rates import _Watch

    found = _Watch(Scripted(processes, bits)).problem()
    assert problem in found and bool(found) == bool(problem)


def test_a_machine_without_a_gpu_is_refused_and_no_file_is_written(mbr_perf, tmp_path):
    done = mbr_perf("probe", "--out", tmp_path / "probe.json")
    assert (done.code, [*tmp_path.glob("*.json")]) == (2, [])


@pytest.mark.train
@pytest.mark.slow
def test_a_rehearsal_measures_every_part_of_the_processor_and_calibrates_nothing(mbr_perf, tmp_path):
    path = tmp_path / "probe.json"
    assert mbr_perf("probe", "--rehearse", "--out", path).code == 0
    found = Probe.model_validate_json(path.read_text())
    assert {row.of for row in found.rows} == {"memory", "gemm_bf16", "attention", "adam", "launch_s", "call_s"}
    assert all(row.seconds > 0 for row in found.rows)
    assert mbr_perf("plan", "--calibrate", path).code == 2


def test_a_probe_alone_calibrates_and_plans_say_so(mbr_perf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    expected = TRUE | {"outside_allocator_bytes": 2**30}
    probe = Probe(gpu="h100", device="NVIDIA H100 80GB HBM3", constants=expected)
    (tmp_path / "probe.json").write_text(probe.model_dump_json())
    out = tmp_path / "h100.json"
    done = mbr_perf("plan", "--calibrate", tmp_path / "probe.json", "--out", out, "--json")
    assert done.code == 0, done.err
    kept = {c["name"]: c["value"] for c in json.loads(done.out)["calibration"]["constants"]}
    assert {name: kept[name] for name in expected} == expected
    slow = probe.model_copy(update={"constants": TRUE | {"gemm_bf16": 0.4}})
    (tmp_path / "probe.json").write_text(slow.model_dump_json())
    answer = mbr_perf("plan", "--calibrate", tmp_path / "probe.json", "--out", out).out
    assert ("Doubt: gemm_bf16 0.4 " in answer, "Doubt: memory" in answer) == (True, False)


@pytest.mark.parametrize(("gpu", "kind", "whose"), [
    ("h100", "bf16 dense", "h100"), ("h200", "bf16 dense", "h100"), ("gb200", "bf16 dense", "b200"),
    ("gb200", "fp8 dense", "gb200"), ("b200", "fp8 dense", "gb200 gb300"), ("b200", "fp8 host-bound dense", "h100"),
    ("b300", "fp8 experts", "b300"), ("gb300", "fp4 experts", "b300 gb200 gb300"),
    ("gb300", "bf16 experts", "b300 gb200 gb300"), ("h100", "bf16 host-bound experts", "h100"),
])  # fmt: skip
def test_seconds_name_the_measured_steps_nearest_to_them(gpu, kind, whose):
    found, text = sources_of(gpu, kind), (source := source_of(gpu, kind)).text
    assert " ".join(name for name, _ in found) == whose
    assert all(f"{share * 100:.1f} % off" in text for share, _ in found.values())
    is_own = (gpu, kind) in found
    assert (source.kind, " ".join(source.gpus)) == ("measured" if is_own else "borrowed", whose)
    assert source.rows == sum(num for _, num in found.values())
    assert min(found.values())[0] <= source.error <= max(found.values())[0] + 1e-4
    assert ("borrowed from" in text, f"no {gpu} {kind} step is measured" in text) == (not is_own, not is_own)


def test_errors_of_a_class_and_of_whole_gpu_types_add_as_squares():
    low, high = borrowed((0.9, 1.1), (0.8, 1.0, 9))
    assert (low, high) == (pytest.approx(0.781, abs=1e-3), pytest.approx(1.1))
