"""Golden files of Megatron-Bridge and Megatron-LM: layouts, what is wrong in them, and logs written as such."""

import json
from pathlib import Path

import pytest

from harness.foreign.golden import read_foreign_golden
from harness.imports.sides import Side, read_side
from tests.commands import refused
from tests.imported_logs import bridge_values

CASES = json.loads((Path(__file__).parents[1] / "data/bridge/foreign.json").read_text())
STEPS = {
    str(step): {"lm loss": 11.0 - step, "elapsed time per iteration (ms)": 900.0, "GPU utilization": 700.0 + step}
    for step in range(3)
}


@pytest.fixture(name="read")
def _read(tmp_path):
    def read(document):
        path = tmp_path / "g.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return read_foreign_golden(path)

    return read


def metric(values, start=1, interval=1):
    return {"start_step": start, "end_step": 100, "step_interval": interval, "values": values}


@pytest.mark.parametrize("case", CASES["logs"], ids=lambda case: case["name"])
def test_logs_say_what_megatron_bridge_reads_bound_to_their_iteration(case, tmp_path):
    for file in case["files"]:
        (tmp_path / file["name"]).write_text(file["text"])
    log = read_side(Side("log", tuple(str(tmp_path / file["name"]) for file in case["files"]), ""))[0]
    document = bridge_values(log)
    for key in ("lm loss", "elapsed time per iteration (ms)", "GPU utilization"):
        steps = {step: values for step, values in document.items() if step.isdecimal()}
        assert {step: values[key] for step, values in steps.items() if key in values} == case["read"][key]
    assert {str(iteration.number - 1): repr(iteration.grad_norm) for iteration in log.iterations} == {
        step: repr(float(value)) for step, value in case["read"]["grad norm"].items()
    }
    assert {name: document.get(name) for name in ("alloc", "max_alloc", "max_reserved")} == {
        name: case["read"][name] for name in ("alloc", "max_alloc", "max_reserved")
    }


def test_steps_become_iterations_and_units_ours(read):
    golden = read(STEPS | {"alloc": 25.5, "max_alloc": 58.8, "max_reserved": 64.2, "job_id": 17})
    assert (golden.format, golden.layout, list(golden.steps)) == ("bridge", "flat", [1, 2, 3])
    assert (golden.steps[2].step_time_s, golden.steps[2].tflops_per_gpu, golden.steps[2].loss) == (0.9, 701.0, 10.0)
    assert golden.memory == {
        "allocated_bytes": 25_500_000_000, "max_allocated_bytes": 58_800_000_000, "max_reserved_bytes": 64_200_000_000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("document", "layout"),
    [
        ({"baseline": STEPS, "current": {}}, "baseline"),
        ({"current": STEPS}, "current"),
        ({"08.01.26": STEPS}, "snapshot 08.01.26"),
        ({"2026-08-01": STEPS, "2025-12-31": {}}, "snapshot 2026-08-01"),
        ({"12.31.25": {}, "08.01.26": STEPS}, "snapshot 08.01.26"),
    ],
)
def test_layouts(read, document, layout):
    golden = read(document)
    assert (golden.layout, len(golden.steps)) == (layout, 3)


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["08.01.26", "12.31.25"], "08.01.26"),
        (["12.31.25", "08.01.26"], "08.01.26"),
        (["2026-08-01", "2026-07-31", "initial"], "2026-08-01"),
    ],
)
def test_of_several_snapshots_the_newest_is_read_with_a_note(read, names, newest):
    golden = read({name: STEPS if name == newest else {"0": {"lm loss": 1.0}} for name in names})
    assert (golden.layout, len(golden.steps)) == (f"snapshot {newest}", 3)
    [note] = golden.notes
    assert f" {len(names)} snapshots" in note and newest in note


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("{", "not JSON"),
        ('{"0": {"lm loss": NaN}}', "0: lm loss: NaN"),
        ('{"0": {"lm loss": 1e999}}', "0: lm loss: Infinity"),
        ('{"0": {}, "0": {}}', "duplicate key '0'"),
        ({"0": {"GPU utilization": 2e18}}, "0: GPU utilization: 2e+18"),
        ({"0": {"GPU utilization": "fast"}}, '0: GPU utilization: "fast"'),
        ({"0": 3}, "0: "),
        ({"0": {}, "alloc": "25"}, 'alloc: "25"'),
        ({"alloc": 25.5}, "'alloc'"),
        ({}, "keys: none"),
        ({"current": [1]}, "'current'"),
        ({"fingerprint": "a", "promoted_by": "b", "metrics": {}}, "kind: missing"),
        ('{"0": {"lm loss": ' + "9" * 5000 + "}}", ""),
        ({"iteration-time": metric({"1": "fast"})}, 'iteration-time: values: 1: "fast"'),
        ({"iteration-time": metric({"one": 1.0})}, "iteration-time: values: one: "),
        ({"iteration-time": metric(3)}, "iteration-time: values: "),
        ({"iteration-time": metric({"1": 1.0}), "lm loss": [1]}, "lm loss: "),
        ({"generated_text": "b", "latency": 1.0}, "'generated_text'"),
        ({"num-zeros": metric({"1": 1.0})}, "'num-zeros'"),
    ],
)
def test_what_is_wrong_names_the_file_and_the_key(read, document, expected):
    refused(lambda: read(document), "g.json:", expected)


def test_metrics_become_steps(read):
    golden = read({
        "lm loss": metric({"1": 10.89631, "5": 10.89154}, interval=5),
        "iteration-time": metric({"1": "nan", "5": 0.06664}, interval=5),
        "mem-allocated-bytes": metric({"1": 581488640.0, "5": 581488640.0}, interval=5),
        "mem-max-allocated-bytes": metric({"1": 2594126336.0, "5": 2690742784.0}, interval=5),
        "num-zeros": metric({"1": 1483.0}),
    })  # fmt: skip
    assert (golden.format, list(golden.steps)) == ("megatron-lm", [1, 5])
    assert [(step.step_time_s, step.loss) for step in golden.steps.values()] == [(None, 10.89631), (0.06664, 10.89154)]
    assert golden.memory_by_iteration["max_allocated_bytes"] == {1: 2594126336, 5: 2690742784}
    [note] = golden.notes
    assert "num-zeros" in note and "lm loss" not in note


def test_a_file_without_end_is_refused():
    refused(lambda: read_foreign_golden(Path("/dev/zero")), "/dev/zero")
